# Quarters of the photos of nuts, of which few have figs. finetuning.py writes them.
_base_ = "./nuts.py"

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="Resize", scale_factor=0.4, keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        data_root="work_dirs/finetuning/quarters",
        ann_file="annotations.json",
        data_prefix=dict(img="images/"),
        pipeline=train_pipeline,
    ),
)
val_evaluator = dict(classwise=True)
test_evaluator = val_evaluator
