# The data set of tools/make_shapes.py.
_base_ = "./mask-rcnn_xcit-n12-p16_nuts.py"

data_root = "data/shapes"
large = dict(scale=1.0)  # photos of 160 x 160 are not resized
model = dict(roi_head=dict(bbox_head=dict(num_classes=4), mask_head=dict(num_classes=4)))

dataset = dict(
    type="CocoDataset",
    data_root=data_root,
    metainfo=dict(
        classes=("circle", "square", "triangle", "star"),
        palette=[(230, 60, 50), (150, 210, 60), (50, 190, 220), (170, 80, 220)],
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(160, 160), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file="annotations/instances_training.json",
        data_prefix=dict(img="images/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file="annotations/instances_validation.json",
        data_prefix=dict(img="images/validation"),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader

train_cfg = dict(max_iters=240, val_interval=240)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=30, end=240),
]
val_evaluator = dict(ann_file=f"{data_root}/annotations/instances_validation.json")
test_evaluator = val_evaluator
