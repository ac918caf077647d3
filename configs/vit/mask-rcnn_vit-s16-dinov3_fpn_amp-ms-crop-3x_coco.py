# No score has been published or measured. The weights have the DINOv3 License, which is not Apache.
_base_ = "./mask-rcnn_vit-s16-deit_fpn_amp-ms-crop-3x_coco.py"

model = dict(backbone=dict(model="vit_small_patch16_dinov3.lvd1689m"))
