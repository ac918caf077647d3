# Common part of the ADE20k recipes: 8 GPUs x 2 crops of 512x512, AdamW, 80k iterations.
# Source: paper, section 4.3, and its published weights.
_base_ = [
    "mmseg::_base_/datasets/ade20k.py",
    "mmseg::_base_/schedules/schedule_80k.py",
    "mmseg::_base_/default_runtime.py",
]
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

train_dataloader = dict(batch_size=2)

optimizer = dict(_delete_=True, type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01)
optim_wrapper = dict(
    optimizer=optimizer, paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)})
)

# The warm-up multiplies a decay over all iterations. mmengine counts to `end` - 1, hence 1501 and
# 80001 for the published 1500 and 80000.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1501),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=0, end=80001),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
