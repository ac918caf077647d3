# Linear probing on CamVid: a frozen trunk, BatchNorm and a 1x1 convolution on its last map.
# mIoU 14.6, mean of three seeds, with the trunk that fpn_xcit-n12-p16_shapes trained in 300
# iterations (docs/benchmark.md).
# Other weights: --cfg-options model.backbone.init_cfg.checkpoint=FILE.
# Data: python tools/get_data.py camvid
_base_ = "../demo/fpn_xcit-n12-p16_camvid.py"

model = dict(
    backbone=dict(
        out_indices=(11,),
        strides=(16,),
        frozen_stages=12,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_nano_12_p16_384_dist"),
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="LinearHead",
        in_channels=128,
        in_index=0,
        num_classes=len(_base_.metainfo["classes"]),
        ignore_index=_base_.void,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
    ),
)
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
