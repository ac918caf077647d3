# Mask2Former on COCO instances: 8 GPUs x 2 images with large-scale jitter, 50 epochs in iterations.
# Source: mmdet's Mask2Former with Swin.
_base_ = "mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py"
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

model = dict(backbone=dict(_delete_=True, type="XCiT"))

# Removes the panoptic segmentation maps, which mmdet's config names but does not read.
train_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img="train2017/")))
val_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img="val2017/")))
test_dataloader = val_dataloader

# mmengine applies the longest key within a name. Without these keys "backbone" would decay the
# backbone's norms.
backbone_norms = {
    f"backbone.blocks.{block}.norm": dict(lr_mult=0.1, decay_mult=0.0) for block in range(24)
}
pyramid = {"backbone.fpn": dict(lr_mult=1.0)}  # missing from the weights of ImageNet
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={**backbone_norms, **pyramid}))
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
