# The small detector that `make demo` trains on shapes, here on the photos of nuts.
_base_ = "../../configs/demo/mask-rcnn_xcit-n12-p16_shapes-quick.py"

data_root = "data/nuts"
load_from = "work_dirs/finetuning/shapes-objects/iter_150.pth"
scale = (320, 240)
max_iters = 300
dataset = dict(
    _delete_=True,
    type="CocoDataset",
    data_root=data_root,
    metainfo=dict(classes=("date", "fig", "hazelnut")),
)
model = dict(roi_head=dict(bbox_head=dict(num_classes=3), mask_head=dict(num_classes=3)))
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="Resize", scale=scale, keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=scale, keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        **dataset,
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        **dataset,
        test_mode=True,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f"{data_root}/annotations/instances_val2017.json")
test_evaluator = val_evaluator
custom_hooks = [dict(type="StrictLoadHook", strict_heads=False), dict(type="NonFiniteHook")]
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=30, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=30)
default_hooks = dict(checkpoint=dict(interval=150, max_keep_ckpts=1))
