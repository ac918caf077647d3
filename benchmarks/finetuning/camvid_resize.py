# Crops at 0.5 to 2 of their size, as in the published recipes.
_base_ = "./camvid.py"

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(
        type="RandomCrop",
        crop_size={{_base_.crop_size}},
        cat_max_ratio=0.75,
        ignore_index={{_base_.void}},
    ),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
