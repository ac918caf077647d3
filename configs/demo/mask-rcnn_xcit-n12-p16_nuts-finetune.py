# Fine-tuning a detector of other classes, here the demo's shapes, with new heads and a lower
# learning rate in layers nearer to the image. A published file, such as
# xcit://maskrcnn_xcit_tiny_12_p16, needs a backbone of the same arch.
_base_ = "./mask-rcnn_xcit-n12-p16_nuts.py"

load_from = "work_dirs/demo/mask-rcnn_xcit-n12-p16_shapes/iter_240.pth"
custom_hooks = [dict(type="StrictLoadHook", strict_heads=False), dict(type="NonFiniteHook")]
optim_wrapper = dict(
    constructor="LayerDecayOptimWrapperConstructor", paramwise_cfg=dict(layer_decay_rate=0.9)
)
