# Common part of the recipes for detectors with masks on COCO: 8 GPUs x 2 images, 36 epochs, mixed
# precision.
# Source: paper, section 4.2, and its published weights.
_base_ = [
    "mmdet::_base_/datasets/coco_instance.py",
    "mmdet::_base_/schedules/schedule_1x.py",
    "mmdet::_base_/default_runtime.py",
]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

# DETR's augmentation: resize, or resize, crop and resize again.
scales = [(side, 1333) for side in range(480, 801, 32)]
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(
        type="RandomChoice",
        transforms=[
            [dict(type="RandomChoiceResize", scales=scales, keep_ratio=True)],
            [
                dict(
                    type="RandomChoiceResize",
                    scales=[(400, 4200), (500, 4200), (600, 4200)],
                    keep_ratio=True,
                ),
                dict(
                    type="RandomCrop",
                    crop_type="absolute_range",
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                dict(type="RandomChoiceResize", scales=scales, keep_ratio=True),
            ],
        ],
    ),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(batch_size=2, dataset=dict(pipeline=train_pipeline))

optim_wrapper = dict(
    type="AmpOptimWrapper",
    optimizer=dict(_delete_=True, type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
)

# mmengine reaches the full rate one iteration before `end`, hence 501 for the published 500.
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=501),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
train_cfg = dict(max_epochs=36)
auto_scale_lr = dict(base_batch_size=16)
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
