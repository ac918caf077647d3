# Semantic FPN on ADE20k, 80k iterations.
_base_ = ["mmseg::_base_/models/fpn_r50.py", "./xcit_80k_ade20k-512x512.py"]

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    pretrained=None,
    backbone=dict(_delete_=True, type="XCiT"),
    decode_head=dict(num_classes=150),
)
