# The config of a fine-tuning. `finetune` writes it beside the data, with its own values down to the
# line "The same in every config".
source = None
training = dict(ann_file="train.json", data_prefix=dict(img=""))
held_out = dict(ann_file="val.json", data_prefix=dict(img=""))
is_validated = True
classes = ()
max_iters = 1000
batch_size = 2
load_from = None
learning_rate = 1e-4
constructor = "LayerDecayOptimWrapperConstructor"
clip_grad = None
work_dir = None  # work_dirs/NAME_OF_CONFIG, not that of an earlier training
train_pipeline = []
test_pipeline = []
metric = ["bbox"]

# The same in every config that `finetune` writes.
resume = False
custom_hooks = [
    # Heads may be for other classes.
    dict(type="StrictLoadHook", strict_heads=False, fill_stem=True),
    dict(type="NonFiniteHook"),
]
metainfo = dict(classes=classes)  # of the labels 0, 1, ...; 255 is ignored in maps
if metric:  # of objects
    data = dict(type="CocoDataset", metainfo=metainfo)
    best = f"coco/{metric[-1]}_mAP"
    test_evaluator = dict(
        _delete_=True,
        type="CocoMetric",
        ann_file=held_out["ann_file"],
        metric=metric,
        classwise=True,
    )
else:
    data = dict(type="BaseSegDataset", metainfo=metainfo)
    best = "mIoU"
    test_evaluator = dict(_delete_=True, type="IoUMetric")
train_dataloader = dict(
    batch_size=batch_size,
    sampler=dict(_delete_=True, type="InfiniteSampler", shuffle=True),
    dataset=dict(
        data,
        _delete_=True,
        filter_cfg=None,  # photos without objects are background
        pipeline=train_pipeline,
        **training,
    ),
)
test_dataloader = dict(
    _delete_=True,
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(data, test_mode=True, pipeline=test_pipeline, **held_out),
)
val_dataloader = test_dataloader if is_validated else None
val_evaluator = test_evaluator if is_validated else None
val_cfg = dict(_delete_=True, type="ValLoop") if is_validated else None

optim_wrapper = dict(
    _delete_=True,
    type="OptimWrapper",  # `amp` trains in mixed precision
    optimizer=dict(type="AdamW", lr=learning_rate, weight_decay=0.05),
    clip_grad=clip_grad,
    constructor=constructor,
    paramwise_cfg=dict(norm_decay_mult=0.0, layer_decay_rate=0.8),
)
warm_up = max(2, max_iters // 20)  # iterations
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=warm_up),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=warm_up, end=max(max_iters, warm_up + 1)),
]
interval = max(1, max_iters // 10)  # of validations and checkpoints
train_cfg = dict(
    _delete_=True, type="IterBasedTrainLoop", max_iters=max_iters, val_interval=interval
)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(
        type="ResumableCheckpointHook",
        by_epoch=False,
        interval=interval,
        max_keep_ckpts=2,
        save_best=best if is_validated else None,
    ),
)
log_processor = dict(by_epoch=False, window_size=10)
auto_scale_lr = dict(enable=False, base_batch_size=batch_size)
