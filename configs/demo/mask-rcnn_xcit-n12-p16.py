# Mask R-CNN + XCiT-N12/16 from scratch in 300 iterations, with few proposals: minutes on a laptop.
_base_ = ["mmdet::_base_/models/mask-rcnn_r50_fpn.py", "mmdet::_base_/default_runtime.py"]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # weights load whole or not at all
    dict(type="NonFiniteHook"),  # the first NaN stops training and is named
]

few_proposals = dict(nms_pre=500, max_per_img=200)
model = dict(
    backbone=dict(_delete_=True, type="XCiT", arch="n12", patch_size=16),
    neck=dict(in_channels=[128] * 4),
    train_cfg=dict(rpn_proposal=few_proposals, rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=few_proposals),
)

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
)
val_dataloader = dict(
    batch_size=1, num_workers=1, persistent_workers=True, sampler=dict(type="DefaultSampler", shuffle=False)
)
test_dataloader = val_dataloader
tta_model = dict(type="MaskTTAModel")
val_evaluator = dict(type="CocoMetric", metric=["bbox", "segm"])
test_evaluator = val_evaluator

optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="AdamW", lr=5e-4, weight_decay=0.05), clip_grad=dict(max_norm=1.0)
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=30, end=300),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=300, val_interval=300)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=100, max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
log_processor = dict(window_size=10, by_epoch=False)
randomness = dict(seed=0)
