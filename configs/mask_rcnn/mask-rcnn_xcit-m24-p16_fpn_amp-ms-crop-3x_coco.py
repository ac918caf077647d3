# Published on COCO val2017: box AP 46.7, mask AP 42.0. Weights: xcit://maskrcnn_xcit_medium_24_p16
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        arch="m24",
        patch_size=16,
        drop_path_rate=0.15,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_medium_24_p16_384_dist"),
    ),
    neck=dict(in_channels=[512] * 4),
)
