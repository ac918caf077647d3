# Faster R-CNN + XCiT-N12/16 from scratch on crowns of trees in aerial images of 0.1 m a pixel, in
# 1500 iterations.
# To train on boxes of your own aerial images, copy this file and the file below it.
# Data: python tools/get_data.py trees
_base_ = "./mask-rcnn_xcit-n12-p16_nuts.py"

data_root = "data/trees"
# Of the tiles, which are enlarged to twice their size: many crowns are smaller than 2 patches.
crop_size = (200, 200)
enlarged = (400, 400)
max_iters = 1500
dataset = dict(data_root=data_root, metainfo=dict(classes=("tree",), palette=[(255, 220, 0)]))

model = dict(
    type="FasterRCNN",
    backbone=dict(strides=(8, 16, 32)),  # the tiles are enlarged, so stride 4 would only cost time
    neck=dict(in_channels=[128] * 3, out_channels=128, num_outs=4),
    rpn_head=dict(
        in_channels=128,
        feat_channels=128,
        # Enlarged crowns are nearly square, of 16 to 216 pixels: anchors of 16 to 181.
        anchor_generator=dict(
            strides=[8, 16, 32, 64],
            octave_base_scale=2,
            scales_per_octave=2,
            scales=None,
            ratios=[1.0],
        ),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=128, featmap_strides=[8, 16, 32], finest_scale=28),
        bbox_head=dict(in_channels=128, fc_out_channels=512, num_classes=1),
        mask_roi_extractor=None,
        mask_head=None,
    ),
    train_cfg=dict(rcnn=dict(sampler=dict(num=128))),
    test_cfg=dict(rcnn=dict(nms=dict(iou_threshold=0.3), max_per_img=200)),  # crowns hardly overlap
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RandomCrop", crop_size=crop_size),
    dict(type="RandomResize", scale=enlarged, ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(
        type="RandomFlip", prob=[0.25, 0.25, 0.25], direction=["horizontal", "vertical", "diagonal"]
    ),
    dict(type="PhotoMetricDistortion", hue_delta=9),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale_factor=2.0, keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    dataset=dict(
        ann_file="train.json", data_prefix=dict(img="train/"), pipeline=train_pipeline, **dataset
    )
)
val_dataloader = dict(
    dataset=dict(
        ann_file="val.json", data_prefix=dict(img="val/"), pipeline=test_pipeline, **dataset
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(metric="bbox", ann_file=f"{data_root}/val.json")
test_evaluator = val_evaluator
tta_model = dict(
    type="DetTTAModel", tta_cfg=dict(nms=dict(type="nms", iou_threshold=0.3), max_per_img=200)
)
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale_factor=2.0, keep_ratio=True)],
            [dict(type="RandomFlip", prob=prob) for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations", with_bbox=True)],
            [dict(type="PackDetInputs")],
        ],
    ),
]
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=30, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
