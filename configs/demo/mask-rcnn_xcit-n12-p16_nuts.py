# Photos of dates, figs and hazelnuts.
_base_ = "./mask-rcnn_xcit-n12-p16.py"

model = dict(roi_head=dict(bbox_head=dict(num_classes=3), mask_head=dict(num_classes=3)))

dataset = dict(
    type="CocoDataset",
    data_root="data/nuts",
    metainfo=dict(classes=("date", "fig", "hazelnut"), palette=[(220, 60, 60), (80, 200, 80), (70, 130, 230)]),
)
train_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
            dict(type="RandomChoiceResize", scales=[(384, 288), (448, 336)], keep_ratio=True),
            dict(type="RandomFlip", prob=0.5),
            dict(type="PackDetInputs"),
        ],
    )
)
val_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        test_mode=True,
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="Resize", scale=(448, 336), keep_ratio=True),
            dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
            dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
        ],
    )
)
test_dataloader = val_dataloader
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale=(448, 336), keep_ratio=True)],
            [dict(type="RandomFlip", prob=prob) for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations", with_bbox=True, with_mask=True)],
            [dict(type="PackDetInputs")],
        ],
    ),
]
val_evaluator = dict(ann_file="data/nuts/annotations/instances_val2017.json")
test_evaluator = val_evaluator
