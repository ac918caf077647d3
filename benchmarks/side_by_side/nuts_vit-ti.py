# The demo's recipe with timm's ViT-Ti/16.
_base_ = "./nuts_xcit-t12.py"

model = dict(backbone=dict(_delete_=True, type="TimmPyramid", model="vit_tiny_patch16_224"))
