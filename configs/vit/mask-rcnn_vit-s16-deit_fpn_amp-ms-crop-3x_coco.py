# No score has been published or measured.
_base_ = "../_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="TimmPyramid",
        model="deit_small_patch16_224.fb_in1k",
        pretrained=True,
        drop_path_rate=0.1,  # of the last block; 0.05 on average, as in XCiT-S12/16
    ),
    neck=dict(in_channels=[384] * 4),
)
