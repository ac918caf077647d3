# Published on COCO val2017: box AP 48.5, mask AP 43.7. Weights: xcit://maskrcnn_xcit_medium_24_p8
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        arch="m24",
        patch_size=8,
        drop_path_rate=0.15,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_medium_24_p8_384_dist"),
    ),
    neck=dict(in_channels=[512] * 4),
)
