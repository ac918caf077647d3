# Fine-tunes the ImageNet classifier on data/folders/{train,val}/CLASS/*.jpg:
# mim train mmpretrain CONFIG
# A recipe to start from; nothing has been measured with it.
_base_ = "mmpretrain::_base_/default_runtime.py"
custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)
custom_hooks = [
    dict(type="StrictLoadHook"),  # raises if a weight of the file or the model has no match
    dict(type="NonFiniteHook"),  # stops at the first NaN and names its module
]

num_classes = 10  # as many as there are folders
data_root = "data/folders"

model = dict(
    type="ImageClassifier",
    backbone=dict(
        type="XCiTClassifier",
        arch="s12",
        patch_size=16,
        num_classes=num_classes,
        as_tuple=True,
        drop_path_rate=0.05,
        # The head is for other classes and starts from scratch.
        init_cfg=dict(
            type="Pretrained", checkpoint="xcit://xcit_small_12_p16_224_dist", strict_heads=False
        ),
    ),
    head=dict(
        type="ClsHead", loss=dict(type="LabelSmoothLoss", label_smooth_val=0.1, mode="original")
    ),
)
data_preprocessor = dict(
    num_classes=num_classes,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,
)

resize = dict(backend="pillow", interpolation="bicubic")
train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="CustomDataset",
        data_root=data_root,
        data_prefix=dict(img_path="train"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="RandomResizedCrop", scale=224, **resize),
            dict(type="RandomFlip", prob=0.5, direction="horizontal"),
            dict(type="PackInputs"),
        ],
    ),
)
val_dataloader = dict(
    batch_size=32,
    num_workers=4,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="CustomDataset",
        data_root=data_root,
        data_prefix=dict(img_path="val"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="ResizeEdge", scale=224, edge="short", **resize),
            dict(type="CenterCrop", crop_size=224),
            dict(type="PackInputs"),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="Accuracy", topk=1)
test_evaluator = val_evaluator

optim_wrapper = dict(
    optimizer=dict(type="AdamW", lr=5e-4, weight_decay=0.05),
    constructor="LayerDecayOptimWrapperConstructor",
    paramwise_cfg=dict(
        layer_decay_rate=0.75, norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0
    ),
)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=0.001,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min=1e-6,
        by_epoch=True,
        begin=2,
        end=20,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=20, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(type="ResumableCheckpointHook"))
