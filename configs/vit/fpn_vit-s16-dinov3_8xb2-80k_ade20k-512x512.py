# No score has been published or measured. The weights have the DINOv3 License, which is not Apache.
_base_ = "./fpn_vit-s16-deit_8xb2-80k_ade20k-512x512.py"

model = dict(backbone=dict(model="vit_small_patch16_dinov3.lvd1689m"))
