# No score has been published or measured.
_base_ = "../_base_/segformer_xcit_160k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="s12",
        patch_size=16,
        drop_path_rate=0.05,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_12_p16_384_dist"),
    ),
    decode_head=dict(in_channels=[384] * 4),
)
