# The averaged weights reach back over about the last tenth of the training.
_base_ = "./camvid.py"

custom_hooks = [
    dict(type="StrictLoadHook", strict_heads=False),
    dict(type="NonFiniteHook"),
    dict(type="EMAHook", momentum=1 / 20),
]
