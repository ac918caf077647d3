"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

import os
from collections.abc import Iterator, Sequence

from mmengine.config import Config

from ..utils.cli import parse_cfg_options
from ..utils.configs import data_sets, evaluators, read_config
from ..utils.errors import reason
from ..utils.scripts import find_script
from ..weights.zoo import find_config
from .data import SPLITS, check_classes, check_data_sets, check_overlap, check_paths
from .findings import Finding, collect, fail
from .model import build_checked_model, check_forward, class_heads
from .recipe import check_recipe
from .weights import check_weights, learned_classes


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run, and the data of its test: config, data, model, weights.

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
    splits = [*SPLITS, "test"] if _tests_on_own_data(cfg) else SPLITS
    yield from check_training(cfg, splits)
    for split in splits[1:]:
        findings = collect(check_overlap(cfg, split))
        # Failures are reported above.
        yield from (finding for finding in findings if finding.level == "note")


def check_training(cfg: Config, splits: Sequence[str] = SPLITS) -> Iterator[Finding]:
    """Check data, model and weights of a training. Nothing is downloaded."""
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    yield from check_paths(cfg, splits)
    model, failures = build_checked_model(cfg)
    yield from failures
    heads = class_heads(model)
    checks = [check_classes(cfg, heads, splits)]
    checks += [check_data_sets(cfg, split, heads) for split in splits]
    checks.append(check_recipe(cfg, processes))
    checks.append(check_weights(cfg, model))
    checks.append(check_forward(model))
    for check in checks:
        yield from collect(check)


def check_test(cfg: Config, checkpoint: str | None = None) -> Iterator[Finding]:
    """Check data and model of a test.

    Args:
        checkpoint: Path, URL or name of the weights, whose classes are compared with the data.
    """
    yield from check_paths(cfg, ["test"])
    model, failures = build_checked_model(cfg)
    yield from failures
    heads = class_heads(model)
    learned = learned_classes(checkpoint) if checkpoint else None
    yield from collect(check_classes(cfg, heads, ["test"], learned))
    yield from collect(check_forward(model))
    yield from collect(check_data_sets(cfg, "test", heads))
    yield from collect(check_overlap(cfg, "test"))


def _tests_on_own_data(cfg: Config) -> bool:
    """Return whether a config tests on other data than it validates and trains on."""
    tested = list(data_sets(cfg, "test"))
    if not cfg.get("val_dataloader"):
        return bool(tested)
    same_scores = evaluators(cfg, "test") == evaluators(cfg, "val")
    return bool(tested) and not (same_scores and tested == list(data_sets(cfg, "val")))
