"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..utils.configs import read_config
from ..utils.errors import reason
from ..utils.ranks import rank_and_size
from ..weights.lookup import find_config
from .classes import check_classes, check_learned_classes
from .data import check_data, check_overlap
from .findings import Finding, collect, fail
from .inputs import check_batch, check_files_of_weights, check_hook, check_pixels, check_sizes
from .model import CheckedModel, check_maps
from .run_config import ConfiguredSplit


def diagnose(
    config: str | Path, *, cfg_options: Mapping[str, Any] | None = None, processes: int = 1
) -> Iterator[Finding]:
    """Check a training run and the data of its test: config, data, model and weights.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        cfg_options: Values that replace those of the config, by dotted key.
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
        if cfg.get("test_dataloader") == cfg.get("val_dataloader"):
            names.remove("test")
        yield from check_training(cfg, names, processes)
    except Exception as error:  # a config is a program
        yield fail("", reason(error), "" if isinstance(error, OSError) else "correct the config")


def check_training(
    cfg: Config, names: Sequence[str] = ("train", "val"), processes: int | None = None
) -> Iterator[Finding]:
    """Check the model, the start of a training, and the data of each split.

    Nothing is downloaded.

    Args:
        names: The splits. The first must be 'train'.
        processes: Number of processes that train. Default: those of torchrun.
    """
    model = CheckedModel(cfg)
    splits = [ConfiguredSplit(cfg, name) for name in names]
    processes = processes or rank_and_size()[1]
    may_leave_out = cfg.get("find_unused_parameters") or cfg.get("model_wrapper_cfg")
    yield from collect(
        model.failures,
        check_classes(splits, model.heads),
        check_batch(cfg, processes),
        check_files_of_weights(cfg),
        check_pixels(cfg),
        check_hook(cfg),
        check_sizes(cfg, model.module),
        check_maps(model.module, must_train_all=processes > 1 and not may_leave_out),
        *(check_data(split, model.heads) for split in splits),
        *(check_overlap(splits[0], split) for split in splits[1:]),
    )


def check_test(cfg: Config, checkpoint: str | None = None) -> Iterator[Finding]:
    """Check model and data of a test, and the classes of a checkpoint, a path, URL or name."""
    model = CheckedModel(cfg)
    test = ConfiguredSplit(cfg, "test")
    yield from collect(
        model.failures,
        check_classes([test], model.heads),
        check_learned_classes(cfg, checkpoint),
        check_sizes(cfg, model.module),
        check_maps(model.module),
        check_data(test, model.heads),
        check_overlap(ConfiguredSplit(cfg, "train"), test),
    )
