"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..utils.configs import read_config
from ..utils.errors import reason
from ..utils.ranks import rank_and_size
from ..weights.lookup import find_config
from .classes import check_classes
from .data import check_data, check_overlap
from .findings import Finding, Findings, fail
from .inputs import check_batch, check_hook, check_pixels, check_sizes
from .model import build_model, check_feature_maps, find_heads
from .run_config import ConfiguredSplit


def diagnose(
    config: str | Path, *, cfg_options: Mapping[str, Any] | None = None, processes: int = 1
) -> Iterator[Finding]:
    """Check a training run and the data of its test: config, data, model and weights.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        cfg_options: Values that replace values in the config, by dotted key.
        processes: Number of processes that will train.

    Yields:
        What was found, as soon as it is found. A `level` of 'FAIL' would stop a training.

    Example:
        >>> from xcit_mm import diagnose
        >>> [finding.text for finding in diagnose("nuts.py") if finding.level == "FAIL"]
        []
    """
    try:
        cfg = read_config(find_config(config), cfg_options)
        names = ["train", "val", "test"]
        parts = ("dataloader", "evaluator")
        if all(cfg.get(f"test_{part}") == cfg.get(f"val_{part}") for part in parts):
            names.remove("test")
        yield from check_training(cfg, names, processes)
    except Exception as error:  # a config is a program
        yield fail("", reason(error))


def check_training(
    cfg: Config, names: Sequence[str] = ("train", "val"), processes: int | None = None
) -> Iterator[Finding]:
    """Check the model, the start of a training, and the data of each split.

    Nothing is downloaded.

    Args:
        names: The splits.
        processes: Number of processes that train. Default: the number that torchrun started.
    """
    processes = processes or rank_and_size()[1]
    start = [check_batch(cfg, processes), check_pixels(cfg), check_hook(cfg)]
    return _check_run(cfg, names, start)


def check_test(cfg: Config) -> Iterator[Finding]:
    """Check the model and the data of a test, and whether its checkpoint will be loaded whole."""
    return _check_run(cfg, ["test"], [check_hook(cfg)])


def _check_run(cfg: Config, names: Sequence[str], start: Sequence[Findings]) -> Iterator[Finding]:
    """Check a run: its model, how it starts, and the data of its splits."""
    model, failures = build_model(cfg)
    heads = find_heads(model)
    splits = {name: ConfiguredSplit(cfg, name, heads) for name in ("train", *names)}
    checked = [splits[name] for name in names]
    others = [split for split in checked if split.name != "train"]
    checks = [
        failures,
        check_classes(checked),
        *start,
        check_sizes(cfg, model),
        check_feature_maps(model),
        *(check_data(split) for split in checked),
        *(check_overlap(splits["train"], split) for split in others),
    ]
    for check in checks:
        try:
            yield from check
        except Exception as error:  # a wrong config makes the libraries raise nearly any exception
            yield fail("", reason(error))
