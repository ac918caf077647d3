# Photos at 0.67 to 1.5 of their size.
_base_ = "./nuts.py"

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomResize", scale={{_base_.scale}}, ratio_range=(0.67, 1.5), keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
