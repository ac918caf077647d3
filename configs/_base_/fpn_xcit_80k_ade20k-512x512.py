# Semantic FPN on ADE20k, 80k iterations.
_base_ = ["mmseg::_base_/models/fpn_r50.py", "./xcit_80k_ade20k-512x512.py"]

model = dict(
    # Tests pad to multiples of 32 pixels and cut the padding off: other sizes misplace the map.
    data_preprocessor=dict(size=(512, 512), test_cfg=dict(size_divisor=32)),
    pretrained=None,
    backbone=dict(_delete_=True, type="XCiT"),
    decode_head=dict(num_classes=150),
)
