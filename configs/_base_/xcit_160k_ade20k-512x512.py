# The ADE20k recipe over 160k iterations.
_base_ = "./xcit_80k_ade20k-512x512.py"

param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1501),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=0, end=160001),
]
train_cfg = dict(max_iters=160000, val_interval=16000)
default_hooks = dict(checkpoint=dict(interval=16000))
