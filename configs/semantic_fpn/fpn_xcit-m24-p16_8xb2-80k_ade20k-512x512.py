# Published on ADE20k val, single scale: mIoU 45.9. Weights: xcit://sem_fpn_xcit_medium_24_p16
_base_ = "../_base_/fpn_xcit_80k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="m24",
        patch_size=16,
        drop_path_rate=0.2,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_medium_24_p16_384_dist"),
    ),
    neck=dict(in_channels=[512] * 4, out_channels=512),
    decode_head=dict(in_channels=[512] * 4),
)
