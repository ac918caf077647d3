# Published on ADE20k val, single scale: mIoU 41.5. Weights: xcit://upernet_xcit_tiny_12_p16
_base_ = "../_base_/upernet_xcit_160k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="t12",
        patch_size=16,
        drop_path_rate=0.0,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_tiny_12_p16_384_dist"),
    ),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192),
)
