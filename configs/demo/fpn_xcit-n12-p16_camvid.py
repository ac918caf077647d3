# CamVid's 11 classes; label 11 is void.
_base_ = "./fpn_xcit-n12-p16.py"

void = 11
model = dict(data_preprocessor=dict(seg_pad_val=void), decode_head=dict(num_classes=11, ignore_index=void))

dataset = dict(
    type="BaseSegDataset",
    data_root="data/camvid",
    img_suffix=".jpg",
    seg_map_suffix=".png",
    metainfo=dict(
        classes=(
            "sky",
            "building",
            "pole",
            "road",
            "pavement",
            "tree",
            "sign",
            "fence",
            "car",
            "pedestrian",
            "bicyclist",
        ),
        palette=[
            [128, 128, 128],
            [128, 0, 0],
            [192, 192, 128],
            [128, 64, 128],
            [0, 0, 192],
            [128, 128, 0],
            [192, 128, 128],
            [64, 64, 128],
            [64, 0, 128],
            [64, 64, 0],
            [0, 128, 192],
        ],
    ),
)
train_dataloader = dict(
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="LoadAnnotations"),
            dict(type="RandomCrop", crop_size=(256, 256), cat_max_ratio=0.75, ignore_index=void),
            dict(type="RandomFlip", prob=0.5),
            dict(type="PackSegInputs"),
        ],
    )
)
val_dataloader = dict(
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=[dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), dict(type="PackSegInputs")],
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=void)
test_evaluator = val_evaluator
