# fpn_xcit-n12-p16_shapes in 90 iterations: what `make demo` trains.
_base_ = "./fpn_xcit-n12-p16_shapes.py"

max_iters = 90
param_scheduler = [dict(type="CosineAnnealingLR", by_epoch=False, begin=0, end=max_iters)]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters + 1)  # tools/demo.py tests it
