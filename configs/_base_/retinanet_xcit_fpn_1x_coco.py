# RetinaNet + FPN on COCO: 8 GPUs x 2 images, 12 epochs.
# Source: mmdet's RetinaNet with PVTv2, but without weight decay of norms, as in all XCiT recipes.
_base_ = [
    "mmdet::_base_/models/retinanet_r50_fpn.py",
    "mmdet::_base_/datasets/coco_detection.py",
    "mmdet::_base_/schedules/schedule_1x.py",
    "mmdet::_base_/default_runtime.py",
    "mmdet::retinanet/retinanet_tta.py",
]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

model = dict(
    backbone=dict(_delete_=True, type="XCiT", strides=(8, 16, 32)),
    neck=dict(start_level=0),  # the backbone omits stride 4, which RetinaNet does not use
)

optim_wrapper = dict(
    optimizer=dict(_delete_=True, type="AdamW", lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
)
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
