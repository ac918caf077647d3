# Published on ADE20k val, single scale: mIoU 47.1. Weights: xcit://sem_fpn_xcit_small_24_p8
_base_ = "../_base_/fpn_xcit_80k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="s24",
        patch_size=8,
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_24_p8_384_dist"),
    ),
    neck=dict(in_channels=[384] * 4, out_channels=384),
    decode_head=dict(in_channels=[384] * 4),
)
