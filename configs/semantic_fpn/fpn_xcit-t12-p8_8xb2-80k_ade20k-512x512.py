# Published on ADE20k val, single scale: mIoU 39.9. Weights: xcit://sem_fpn_xcit_tiny_12_p8
_base_ = "../_base_/fpn_xcit_80k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="t12",
        patch_size=8,
        drop_path_rate=0.0,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_tiny_12_p8_384_dist"),
    ),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
