# Mask2Former on ADE20k: 8 GPUs x 2 crops of 512x512, 160k iterations.
# Source: mmseg's Mask2Former with Swin.
_base_ = "mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py"
custom_imports = dict(imports=["xcit_mm", "mmdet.models"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

model = dict(backbone=dict(_delete_=True, type="XCiT"))

# mmengine applies the longest key within a name. Without these keys "backbone" would decay the
# backbone's norms.
backbone_norms = {
    f"backbone.blocks.{block}.norm": dict(lr_mult=0.1, decay_mult=0.0) for block in range(24)
}
pyramid = {"backbone.fpn": dict(lr_mult=1.0)}  # missing from the weights of ImageNet
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={**backbone_norms, **pyramid}))
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
