# The small segmentor of `make demo`, trained on shapes, on the street scenes of CamVid.
_base_ = "../../configs/demo/fpn_xcit-n12-p16_camvid.py"

load_from = "work_dirs/finetuning/shapes-maps/iter_90.pth"
crop_size = (160, 160)
void = 11
max_iters = 200
model = dict(data_preprocessor=dict(size=crop_size))
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75, ignore_index=void),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=4, num_workers=0, persistent_workers=False, dataset=dict(pipeline=train_pipeline)
)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
custom_hooks = [dict(type="StrictLoadHook", strict_heads=False), dict(type="NonFiniteHook")]
param_scheduler = [dict(type="CosineAnnealingLR", by_epoch=False, begin=0, end=max_iters)]
train_cfg = dict(max_iters=max_iters, val_interval=20)
default_hooks = dict(checkpoint=dict(interval=100, max_keep_ckpts=1))
