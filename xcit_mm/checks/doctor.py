"""The checks of a run: the doctor prints what they find, and a run with a failure does not start."""

import os
from collections.abc import Iterator

from mmengine.config import Config

from ..utils.cli import parse_cfg_options
from ..utils.configs import data_sets, read_config
from ..utils.errors import reason
from ..weights.zoo import find_config
from .data import SPLITS, check_classes, check_data_sets, check_drawings, check_overlap, check_paths
from .findings import Finding, collect, fail
from .model import build_checked_model, check_forward, class_heads
from .preflight import check_imports, check_recipe, find_script
from .weights import check_weights

_MAX_JSON_BYTES = (
    30e6  # the start of a run reads this in a second, and leaves larger files to the doctor
)


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run: config, data, model, weights.

    The environment variable `WORLD_SIZE` gives the number of processes, 1 by default.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        argv: Command line with the `--cfg-options` that change the config.
    """
    try:
        config = find_config(config)
        cfg = read_config(config, parse_cfg_options(argv))
        find_script(cfg, config, "train")
    except Exception as error:  # a config is a program
        yield fail("", reason(error), "correct the config")
        return
    yield from collect(check_imports(cfg))
    yield from check_training(cfg)
    found = collect(check_overlap(cfg, "val" if cfg.get("val_dataloader") else "test"))
    yield from (each for each in found if each.level == "note")  # failures are reported above


def check_training(cfg: Config, leave_large: bool = False) -> Iterator[Finding]:
    """Check data, model and weights of a training, perhaps without large jsons. Nothing is
    downloaded.
    """
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    yield from check_paths(cfg, SPLITS)
    model, found = build_checked_model(cfg)
    heads, read = (
        class_heads(model),
        [split for split in SPLITS if not (leave_large and _is_large(cfg, split))],
    )
    yield from found
    for check in (
        check_classes(cfg, heads),
        *(check_data_sets(cfg, split, heads) for split in read),
        check_recipe(cfg, processes),
        check_weights(cfg, model),
        check_forward(cfg, model, processes),
    ):
        yield from collect(check)


def check_test(cfg: Config, drawn: bool = False) -> Iterator[Finding]:
    """Check data and model of a test, perhaps with drawings, without large jsons."""
    yield from check_paths(cfg, ["test"])
    model, found = build_checked_model(cfg)
    yield from found
    yield from collect(check_forward(cfg, model))
    if not (_is_large(cfg, "test") or _is_large(cfg, "train")):
        yield from collect(check_overlap(cfg, "test"))
        yield from collect(check_drawings(cfg) if drawn else ())


def _is_large(cfg: Config, split: str) -> bool:
    paths = (
        os.path.join(data.get("data_root") or "", data.get("ann_file") or "")
        for data in data_sets(cfg, split)
    )
    return any(os.path.isfile(path) and os.path.getsize(path) > _MAX_JSON_BYTES for path in paths)
