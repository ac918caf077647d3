# Published on COCO val2017: box AP 47.0, mask AP 42.3. Weights: xcit://maskrcnn_xcit_small_12_p8
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        arch="s12",
        patch_size=8,
        drop_path_rate=0.05,
        init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_12_p8_384_dist"),
    ),
    neck=dict(in_channels=[384] * 4),
)
