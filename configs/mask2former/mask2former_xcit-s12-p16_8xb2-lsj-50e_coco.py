# No score has been published or measured.
_base_ = "../_base_/mask2former_xcit_8xb2-lsj-50e_coco.py"

model = dict(
    backbone=dict(
        arch="s12",
        patch_size=16,
        drop_path_rate=0.05,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_12_p16_384_dist"),
    ),
    panoptic_head=dict(in_channels=[384] * 4),
)
