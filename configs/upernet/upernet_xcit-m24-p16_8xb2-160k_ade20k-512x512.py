# Published on ADE20k val, single scale: mIoU 47.6. Weights: xcit://upernet_xcit_medium_24_p16
_base_ = "../_base_/upernet_xcit_160k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="m24",
        patch_size=16,
        drop_path_rate=0.15,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_medium_24_p16_384_dist"),
    ),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512),
)
