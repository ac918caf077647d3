# SegFormer's head on ADE20k, 160k iterations.
# Source: mmseg's SegFormer, which has XCiT's optimizer and schedule, with ten times the learning
# rate in the head.
_base_ = ["mmseg::_base_/models/segformer_mit-b0.py", "./xcit_160k_ade20k-512x512.py"]

model = dict(
    # Tests pad to multiples of 32 pixels and cut the padding off: other sizes misplace the map.
    data_preprocessor=dict(size=(512, 512), test_cfg=dict(size_divisor=32)),
    backbone=dict(_delete_=True, type="XCiT"),
    decode_head=dict(num_classes=150),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"head": dict(lr_mult=10.0)}))
