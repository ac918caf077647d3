# Batches with images of several sizes, whose features are independent of the padding.
_base_ = "./mask-rcnn_xcit-n12-p16_shapes.py"
model = dict(backbone=dict(ignore_padding=True))
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomChoiceResize", scales=[(96, 96), (128, 128), (160, 160), (224, 224)], keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
