# Linear probing on ADE20k: a frozen trunk, BatchNorm and a 1x1 convolution on its last map, 40k
# iterations.
# Source: DINOv2 (https://arxiv.org/abs/2304.07193), section 7.4, with the linear layer on the last
# block's tokens.
_base_ = ["mmseg::_base_/models/fpn_r50.py", "./xcit_80k_ade20k-512x512.py"]

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type="XCiT",
        patch_size=16,
        out_indices=(11,),
        strides=(16,),
        frozen_stages=12,
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="LinearHead",
        in_channels=384,
        in_index=0,
        num_classes=150,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
    ),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1501),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=0, end=40001),
]
train_cfg = dict(max_iters=40000, val_interval=4000)
default_hooks = dict(checkpoint=dict(interval=4000))
