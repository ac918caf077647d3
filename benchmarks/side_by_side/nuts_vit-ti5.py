# The demo's recipe with the first five blocks of timm's ViT-Ti/16, the parameters of XCiT-N12/16.
_base_ = "./nuts_vit-ti.py"

model = dict(backbone=dict(out_indices=(1, 2, 3, 4)))
