"""`--cfg-options`: a key that changes nothing is refused with the nearest, any other is taken."""

import pytest
from helpers.paths import CONFIGS

from xcit_mm import read_config

SEG = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-quick.py"
DET = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes-quick.py"


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("max_iters", "train_cfg.max_iters"),  # a variable of the file, which nothing reads
        ("train_cfg.max_iter", "train_cfg.max_iters"),
        ("lr", "optim_wrapper.optimizer.lr"),
        ("batch_size", "train_dataloader.batch_size"),
        ("train_dataloader.batchsize", "train_dataloader.batch_size"),
        ("optim_wraper.optimizer.lr", "optim_wrapper.optimizer.lr"),
        ("default_hooks.loger.interval", "default_hooks.logger.interval"),
        ("default_hooks.checkpoint.max_keep_ckpt", "default_hooks.checkpoint.max_keep_ckpts"),
        ("default_hooks.checkpoint.intervall", "default_hooks.checkpoint.interval"),
        ("default_hooks.checkpoint.save_bst", "default_hooks.checkpoint.save_best"),  # its default
        ("default_hooks.chekpoint.interval", "default_hooks.checkpoint.interval"),
        ("val_dataloadr.batch_size", "val_dataloader.batch_size"),
        ("model.backbone.archh", "model.backbone.arch"),
    ],
)
def test_a_key_that_changes_nothing_is_refused(key, nearest):
    with pytest.raises(ValueError) as refused:
        read_config(SEG, {key: 3})
    expected = f"--cfg-options {key}: no part of the config has this key: did you mean {nearest}?"
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"train_cfg.max_iters": 3},
        {"load_from": "a.pth"},
        {"randomness.seed": 0},
        {"find_unused_parameters": True},
        {"model.backbone.with_cp": True},  # an argument that the config does not state
        {"default_hooks.checkpoint.save_best": "coco/bbox_mAP"},
        {"default_hooks.checkpoint.priority": "LOW"},
        {"optim_wrapper.paramwise_cfg.norm_decay_mult": 0},
        {"optim_wrapper.type": "AmpOptimWrapper", "optim_wrapper.dtype": "bfloat16"},
        {"train_dataloader.prefetch_factor": 4},
        {"train_dataloader.dataset.filter_cfg.min_size": 8},
        {"train_cfg._delete_": True, "train_cfg.max_epochs": 3},
        {"default_hooks.stop.type": "EarlyStoppingHook", "default_hooks.stop.monitor": "mIoU"},
        {"param_scheduler.1.end": 9},
        {"visualizer.vis_backends": [dict(type="TensorboardVisBackend")]},
    ],
    ids=str,
)
def test_a_key_that_a_part_takes_is_accepted(options):
    read_config(DET, options)
