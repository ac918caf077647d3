# Semantic FPN + XCiT-N12/16 from scratch on CamVid's 11 classes, in 300 iterations of 8 crops:
# minutes on a laptop.
# To train on your own segmentation maps, copy this file to any folder.
# Data: python tools/get_data.py camvid
_base_ = ["mmseg::_base_/models/fpn_r50.py", "mmseg::_base_/default_runtime.py"]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

# Set these eight for your own segmentation maps.
data_root = "data/camvid"
training = dict(data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"))
held_out = dict(
    data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation")
)
suffixes = dict(img_suffix=".jpg", seg_map_suffix=".png")
metainfo = dict(
    classes=(
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "bicyclist",
    ),
    palette=[
        [128, 128, 128],
        [128, 0, 0],
        [192, 192, 128],
        [128, 64, 128],
        [0, 0, 192],
        [128, 128, 0],
        [192, 128, 128],
        [64, 64, 128],
        [64, 0, 128],
        [64, 64, 0],
        [0, 128, 192],
    ],
)
void = 11  # the label of unlabelled pixels; 255 if every pixel has a class
crop_size = (256, 256)
max_iters = 300

model = dict(
    # Tests pad to multiples of 32 pixels and cut the padding off: other sizes misplace the map.
    data_preprocessor=dict(size=crop_size, seg_pad_val=void, test_cfg=dict(size_divisor=32)),
    pretrained=None,
    backbone=dict(_delete_=True, type="XCiT", arch="n12", patch_size=16),
    neck=dict(in_channels=[128] * 4, out_channels=128),
    decode_head=dict(
        in_channels=[128] * 4, num_classes=len(metainfo["classes"]), ignore_index=void
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75, ignore_index=void),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="BaseSegDataset",
        data_root=data_root,
        metainfo=metainfo,
        **suffixes,
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
        type="BaseSegDataset",
        data_root=data_root,
        metainfo=metainfo,
        **suffixes,
        **held_out,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
# Trained at one scale, the model scores lower at other scales. The views are the image and its
# mirror image.
tta_model = dict(type="SegTTAModel")
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"], ignore_index=void)
test_evaluator = val_evaluator

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [dict(type="CosineAnnealingLR", by_epoch=False, begin=0, end=max_iters)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=10, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=100, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="SegVisualizationHook", interval=1),  # with draw=True: every image
)
randomness = dict(seed=0)
