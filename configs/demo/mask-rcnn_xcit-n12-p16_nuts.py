# Mask R-CNN + XCiT-N12/16 from scratch on photos of dates, figs and hazelnuts, in 300 iterations
# with few proposals: minutes on a laptop.
# To train on your own instances, copy this file to any folder.
# Data: python tools/get_data.py nuts
_base_ = ["mmdet::_base_/models/mask-rcnn_r50_fpn.py", "mmdet::_base_/default_runtime.py"]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

# Set these seven for your own photos.
data_root = "data/nuts"
training = dict(ann_file="annotations/instances_train2017.json", data_prefix=dict(img="train2017/"))
held_out = dict(ann_file="annotations/instances_val2017.json", data_prefix=dict(img="val2017/"))
metainfo = dict(
    classes=("date", "fig", "hazelnut"), palette=[(220, 60, 60), (80, 200, 80), (70, 130, 230)]
)
train_scales = [(384, 288), (448, 336)]  # longer and shorter side, in pixels
test_scale = (448, 336)
large = dict(scale=0.56)  # of photos of 800 x 600, for images in tiles or whole
max_iters = 300

num_classes = len(metainfo["classes"])
few_proposals = dict(nms_pre=500, max_per_img=200)
model = dict(
    backbone=dict(_delete_=True, type="XCiT", arch="n12", patch_size=16),
    neck=dict(in_channels=[128] * 4),
    roi_head=dict(bbox_head=dict(num_classes=num_classes), mask_head=dict(num_classes=num_classes)),
    train_cfg=dict(rpn_proposal=few_proposals, rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=few_proposals),
)

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomChoiceResize", scales=train_scales, keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=test_scale, keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
    dataset=dict(
        type="CocoDataset",
        data_root=data_root,
        metainfo=metainfo,
        **training,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="CocoDataset",
        data_root=data_root,
        metainfo=metainfo,
        **held_out,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type="CocoMetric", metric=["bbox", "segm"], ann_file=f"{data_root}/{held_out['ann_file']}"
)
test_evaluator = val_evaluator

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=5e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=30, end=max_iters),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=100, max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
log_processor = dict(window_size=10, by_epoch=False)
randomness = dict(seed=0)
