"""The doctor: findings about a training run before it starts."""

import os
from collections.abc import Iterator

from ..utils.configs import read_config
from ..utils.errors import reason
from ..weights.models import find_config
from .config import check_batch, check_ignored_labels, check_imports
from .data import SPLITS, check_classes, check_data_sets, check_overlap
from .findings import Finding, fail, note
from .launch import find_script
from .machine import check_disk, check_launcher, check_precision
from .model import build_checked_model, check_channels, check_norms, class_heads
from .schedule import check_input, check_optimizer, check_parts, check_schedule
from .weights import check_weights

__all__ = ["diagnose"]


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run: config, data, model, weights, machine.

    The environment variable `WORLD_SIZE` gives the number of processes, 1 by default.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        argv: Command line with the `--cfg-options` that change the config.
    """
    try:
        config = find_config(config)
        cfg = read_config(config, argv)
        find_script(cfg, config, "train")
    except Exception as error:  # a config is a program
        yield fail("D201", reason(error), "correct the config")
        return
    yield from check_imports(cfg)
    model, finding = build_checked_model(cfg)
    yield finding
    heads = class_heads(model)
    batch_size = (cfg.get("train_dataloader") or {}).get("batch_size", 1)
    given = os.environ.get("WORLD_SIZE") or "1"
    processes = int(given) if given.isdecimal() else 0
    if processes < 1:
        yield fail("D203", f"WORLD_SIZE={given} is not a number of processes", "set it to 1 or more, or unset it")
        processes = 1
    yield from check_classes(cfg, heads)
    for split in SPLITS:
        yield from check_data_sets(cfg, split, heads)
    yield from (finding for finding in check_overlap(cfg) if finding.level == "note")  # failures are reported above
    yield from check_ignored_labels(cfg, heads)
    yield from check_parts(cfg)
    yield from check_input(cfg, bool(getattr(model, "with_mask", False)))
    yield from check_channels(cfg, model)
    yield from check_weights(cfg, model)
    yield from check_batch(cfg, batch_size, processes)
    yield from check_optimizer(cfg)
    yield from check_schedule(cfg)
    yield from check_norms(model, batch_size, processes)
    for finding in check_precision(cfg):  # the run may be on another machine
        yield note("D206", finding.text, finding.fix)
    for finding in check_launcher("pytorch" if processes > 1 else None):
        yield note("D220", finding.text, finding.fix)
    yield from check_disk(cfg, config, model)
