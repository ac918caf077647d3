# The data set of tools/make_shapes.py: label 0 is unlabelled, 1 the background, 2 to 5 the shapes.
_base_ = "./fpn_xcit-n12-p16_camvid.py"

data_root = "data/shapes"
void = 255  # label 0 after reduce_zero_label
crop_size = (160, 160)
model = dict(
    data_preprocessor=dict(size=crop_size, seg_pad_val=void),
    decode_head=dict(num_classes=5, ignore_index=void),
)

dataset = dict(
    type="BaseSegDataset",
    data_root=data_root,
    img_suffix=".jpg",
    seg_map_suffix=".png",
    reduce_zero_label=True,
    metainfo=dict(
        classes=("background", "circle", "square", "triangle", "star"),
        palette=[[60, 60, 60], [230, 60, 50], [150, 210, 60], [50, 190, 220], [170, 80, 220]],
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(dataset=dict(**dataset, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(**dataset))
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=void)
test_evaluator = val_evaluator
