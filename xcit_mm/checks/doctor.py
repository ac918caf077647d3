"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

import os
from collections.abc import Iterator, Sequence

from mmengine.config import Config

from ..utils.cli import parse_cfg_options
from ..utils.configs import read_config
from ..utils.errors import reason
from ..weights.zoo import find_config
from .classes import check_classes, check_learned_classes
from .data import check_data, check_overlap
from .findings import Finding, collect, fail
from .inputs import check_sizes, check_start, check_weights
from .model import CheckedModel, check_maps
from .run_config import ConfiguredSplit


def diagnose(config: str, cfg_options: Sequence[str] = ()) -> Iterator[Finding]:
    """Check a training run, and the data of its test: config, data, model, weights.

    The environment variable `WORLD_SIZE` gives the number of processes, 1 by default.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        cfg_options: Changes of the config, each KEY=VALUE.
    """
    try:
        config = find_config(config)
        cfg = read_config(config, parse_cfg_options(cfg_options))
        names = ["train", "val", "test"]
        if cfg.get("test_dataloader") == cfg.get("val_dataloader"):
            names.remove("test")
        yield from check_training(cfg, names)
    except Exception as error:  # a config is a program
        yield fail("", reason(error), "correct the config")


def check_training(cfg: Config, names: Sequence[str] = ("train", "val")) -> Iterator[Finding]:
    """Check model and start of a training, and the data of splits, of which the first is 'train'.
    Nothing is downloaded.
    """
    model = CheckedModel(cfg)
    splits = [ConfiguredSplit(cfg, name) for name in names]
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    may_leave_out = cfg.get("find_unused_parameters") or cfg.get("model_wrapper_cfg")
    yield from collect(
        model.failures,
        check_classes(splits, model.heads),
        check_start(cfg, processes),
        check_weights(cfg, model.module),
        check_sizes(cfg, model.module),
        check_maps(model.module, processes > 1 and not may_leave_out),
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
