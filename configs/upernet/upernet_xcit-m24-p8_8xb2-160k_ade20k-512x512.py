# Published on ADE20k val, single scale: mIoU 48.4. Weights: xcit://upernet_xcit_medium_24_p8
_base_ = "../_base_/upernet_xcit_160k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="m24",
        patch_size=8,
        drop_path_rate=0.15,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_medium_24_p8_384_dist"),
    ),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512),
)
