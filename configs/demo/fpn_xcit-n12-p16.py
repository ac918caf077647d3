# Semantic FPN + XCiT-N12/16 from scratch in 300 iterations of 8 crops of 256x256: minutes on a laptop.
_base_ = ["mmseg::_base_/models/fpn_r50.py", "mmseg::_base_/default_runtime.py"]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # weights load whole or not at all
    dict(type="NonFiniteHook"),  # the first NaN stops training and is named
]

crop_size = (256, 256)
model = dict(
    data_preprocessor=dict(size=crop_size),
    pretrained=None,
    backbone=dict(_delete_=True, type="XCiT", arch="n12", patch_size=16),
    neck=dict(in_channels=[128] * 4, out_channels=128),
    decode_head=dict(in_channels=[128] * 4),
)

train_dataloader = dict(
    batch_size=8, num_workers=2, persistent_workers=True, sampler=dict(type="InfiniteSampler", shuffle=True)
)
val_dataloader = dict(
    batch_size=1, num_workers=1, persistent_workers=True, sampler=dict(type="DefaultSampler", shuffle=False)
)
test_dataloader = val_dataloader
# Trained at one scale, it scores less with others: the views are the image and its mirror image.
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
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator

optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05), clip_grad=dict(max_norm=1.0)
)
param_scheduler = [dict(type="CosineAnnealingLR", by_epoch=False, begin=0, end=300)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=300, val_interval=300)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=10, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=100, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="SegVisualizationHook"),
)
randomness = dict(seed=0)
