# Published on COCO val2017: box AP 42.7, mask AP 38.5. Weights: xcit://maskrcnn_xcit_tiny_12_p16
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        arch="t12",
        patch_size=16,
        drop_path_rate=0.0,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_tiny_12_p16_384_dist"),
    ),
    neck=dict(in_channels=[192] * 4),
)
