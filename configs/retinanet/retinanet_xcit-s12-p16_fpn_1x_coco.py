# No score has been published or measured.
_base_ = "../_base_/retinanet_xcit_fpn_1x_coco.py"

model = dict(
    backbone=dict(
        arch="s12",
        patch_size=16,
        drop_path_rate=0.05,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_12_p16_384_dist"),
    ),
    neck=dict(in_channels=[384] * 3),
)
