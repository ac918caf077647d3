# The demo's recipe with the first five blocks of timm's ViT-Ti/16, the parameters of XCiT-N12/16.
_base_ = "../../configs/demo/fpn_xcit-n12-p16_camvid.py"

vit = dict(type="TimmPyramid", model="vit_tiny_patch16_224", out_indices=(1, 2, 3, 4))
model = dict(
    backbone=dict(_delete_=True, **vit),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
