# The demo's recipe with XCiT-T12/16, which has the width, depth and parameters of ViT-Ti/16.
_base_ = "../../configs/demo/fpn_xcit-n12-p16_camvid.py"

model = dict(
    backbone=dict(arch="t12"),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
