# The data set of tools/make_shapes.py: label 0 is unlabelled, 1 the background, 2 to 5 the shapes.
_base_ = "./fpn_xcit-n12-p16.py"

model = dict(data_preprocessor=dict(size=(160, 160)), decode_head=dict(num_classes=5))

dataset = dict(
    type="BaseSegDataset",
    data_root="data/shapes",
    img_suffix=".jpg",
    seg_map_suffix=".png",
    reduce_zero_label=True,
    metainfo=dict(
        classes=("background", "circle", "square", "triangle", "star"),
        palette=[[60, 60, 60], [230, 60, 50], [150, 210, 60], [50, 190, 220], [170, 80, 220]],
    ),
)
train_dataloader = dict(
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="LoadAnnotations"),
            dict(type="RandomFlip", prob=0.5),
            dict(type="PackSegInputs"),
        ],
    )
)
val_dataloader = dict(
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="LoadAnnotations"),
            dict(type="PackSegInputs"),
        ],
    )
)
test_dataloader = val_dataloader
