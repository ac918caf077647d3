# UperNet on ADE20k, 160k iterations.
_base_ = ["mmseg::_base_/models/upernet_r50.py", "./xcit_80k_ade20k-512x512.py"]

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    pretrained=None,
    backbone=dict(_delete_=True, type="XCiT"),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)

param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1501),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=0, end=160001),
]
train_cfg = dict(max_iters=160000, val_interval=16000)
default_hooks = dict(checkpoint=dict(interval=16000))
