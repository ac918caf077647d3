# The demo's recipe with XCiT-T12/16, which has the width, depth and parameters of ViT-Ti/16.
_base_ = "../../configs/demo/mask-rcnn_xcit-n12-p16_nuts.py"

model = dict(
    backbone=dict(arch="t12"),
    neck=dict(in_channels=[192] * 4),
)
