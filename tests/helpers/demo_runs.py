"""Demo configs, shortened and on other data, as arguments of tools/train.py and tools/test.py."""

from pathlib import Path

import torch

from helpers.paths import CONFIGS
from xcit_mm.weights.reader import load_from_file

DEMO = CONFIGS / "demo"
SCORES = {"fpn_xcit-n12-p16_shapes": "mIoU", "mask-rcnn_xcit-n12-p16_shapes": "coco/segm_mAP"}


def cfg_options(config: str, data: Path, iterations: int, workers: int = 0) -> list[str]:
    """--cfg-options that point a demo config at `data` and shorten it."""
    options = [
        "default_hooks.checkpoint.interval=2",
        "default_hooks.logger.interval=1",
        "train_dataloader.batch_size=2",
        f"train_cfg.max_iters={iterations}",
        f"train_cfg.val_interval={iterations}",
    ]
    for split in ("train", "val", "test"):
        loader = f"{split}_dataloader"
        options.append(f"{loader}.dataset.data_root={data}")
        options.append(f"{loader}.num_workers={workers}")
        options.append(f"{loader}.persistent_workers={workers > 0}")
    if config.startswith("mask"):
        ann_file = data / "annotations" / "instances_validation.json"
        options += [f"{split}_evaluator.ann_file={ann_file}" for split in ("val", "test")]
    return ["--cfg-options", *options]


def assert_same_state(expected: Path, file: Path) -> None:
    """Check that two checkpoints hold the same weights, optimizer, EMA, schedule and position."""
    a = load_from_file(str(expected))
    b = load_from_file(str(file))
    for part in ("state_dict", "optimizer", "ema_state_dict"):
        torch.testing.assert_close(a.get(part), b.get(part), rtol=0, atol=0)
    assert a.get("param_schedulers") == b.get("param_schedulers")
    for key in ("epoch", "iter"):
        assert a["meta"][key] == b["meta"][key]
