# Mask2Former on COCO instances: 8 GPUs x 2 images with large-scale jitter, 50 epochs in iterations.
# Source: mmdet's Mask2Former with Swin.
_base_ = "mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py"
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # weights load whole or not at all
    dict(type="NonFiniteHook"),  # the first NaN stops training and is named
]

model = dict(backbone=dict(_delete_=True, type="XCiT"))

# Without the panoptic segmentation maps that mmdet's config names and does not read.
train_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img="train2017/")))
val_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img="val2017/")))
test_dataloader = val_dataloader

# The longest key within a name counts: the backbone's own would otherwise decay its norms.
backbone_norms = {f"backbone.blocks.{block}.norm": dict(lr_mult=0.1, decay_mult=0.0) for block in range(24)}
pyramid = {"backbone.fpn": dict(lr_mult=1.0)}  # not in the weights of ImageNet
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={**backbone_norms, **pyramid}))
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
