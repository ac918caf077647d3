# mask-rcnn_xcit-n12-p16_shapes in 150 iterations of a smaller detector: what `make demo` trains.
_base_ = "./mask-rcnn_xcit-n12-p16_shapes.py"

max_iters = 150
model = dict(
    # Every shape is larger than four patches, so stride 4 would only cost time.
    backbone=dict(strides=(8, 16, 32)),
    neck=dict(in_channels=[128] * 3, out_channels=128, num_outs=4),
    rpn_head=dict(
        in_channels=128,
        feat_channels=128,
        anchor_generator=dict(strides=[8, 16, 32, 64], scales=[5]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=128, featmap_strides=[8, 16, 32]),
        bbox_head=dict(in_channels=128, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=128, featmap_strides=[8, 16, 32]),
        mask_head=dict(in_channels=128, conv_out_channels=64, num_convs=2),
    ),
)
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=20, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters + 1)  # tools/demo.py tests it
