# Published on COCO val2017: box AP 46.5, mask AP 41.8. Weights: xcit://maskrcnn_xcit_small_24_p16
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        arch="s24",
        patch_size=16,
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_24_p16_384_dist"),
    ),
    neck=dict(in_channels=[384] * 4),
)
