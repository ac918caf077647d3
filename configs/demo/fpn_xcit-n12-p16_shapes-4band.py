# Rasters of four bands, red, green, blue and near infrared.
# Data: python tools/make_shapes.py data/shapes-4band --rasters
_base_ = "./fpn_xcit-n12-p16_shapes.py"

data_root = "data/shapes-4band"
# mmseg's data preprocessor supports one or three channels, so the pipelines normalise. Test-time
# augmentation reads this top-level variable.
data_preprocessor = dict(mean=None, std=None, bgr_to_rgb=False)
model = dict(data_preprocessor=data_preprocessor, backbone=dict(in_channels=4))

load = dict(type="LoadRasterFromFile")
normalize = dict(
    type="Normalize",
    mean=[28732.0, 28004.9, 27878.9, 20594.4],  # of the training images
    std=[10123.7, 10422.7, 10531.1, 9505.4],
    to_rgb=False,  # bands are in the order of the file
)
train_pipeline = [
    load,
    dict(type="LoadAnnotations"),
    dict(type="RandomFlip", prob=0.5),
    normalize,
    dict(type="PackSegInputs"),
]
test_pipeline = [load, normalize, dict(type="LoadAnnotations"), dict(type="PackSegInputs")]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        img_suffix=".tif",
        data_prefix=dict(img_path="rasters/training"),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        img_suffix=".tif",
        data_prefix=dict(img_path="rasters/validation"),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
tta_pipeline = [
    load,
    normalize,
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
