"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from ..utils.cli import parse_cfg_options
from ..utils.configs import read_config
from ..utils.errors import reason
from ..utils.scripts import find_script
from ..weights.classes import class_heads
from ..weights.zoo import find_config
from .classes import check_classes
from .data import check_data_sets, check_overlaps, check_paths
from .findings import Finding, collect, fail
from .model import build_model, check_forward, check_rates
from .run_config import RunConfig, tests_on_own_data
from .weights import check_learned_classes, check_weights

SPLITS = ("train", "val")


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
    yield from check_training(cfg, [*SPLITS, "test"] if tests_on_own_data(cfg) else SPLITS)


def check_training(cfg: Config, names: Sequence[str] = SPLITS) -> Iterator[Finding]:
    """Check data, model and weights of a training. Nothing is downloaded.

    Args:
        names: The splits whose data are checked.
    """
    yield from _check(cfg, names, names)


def check_test(cfg: Config, checkpoint: str | None = None) -> Iterator[Finding]:
    """Check data and model of a test.

    Args:
        checkpoint: Path, URL or name of the weights, whose classes are compared with the data.
    """
    yield from _check(cfg, ["train", "test"], ["test"], checkpoint)


def _check(
    cfg: Config, names: Sequence[str], checked: Sequence[str], checkpoint: str | None = None
) -> Iterator[Finding]:
    """Check some splits of a config, and that others do not share their photos. What takes long is
    checked last.
    """
    splits = RunConfig(cfg, names).splits
    model, failures = build_model(cfg)
    heads = class_heads(model)
    run = [splits[name] for name in checked]
    yield from check_paths(run)
    yield from failures
    checks = [check_classes(run, heads)]
    if "train" in checked:
        checks += [check_rates(cfg), check_weights(cfg, model)]
    if checkpoint:
        checks.append(check_learned_classes(cfg, checkpoint))
    checks.append(check_forward(model))
    checks += [check_data_sets(split, heads) for split in run]
    checks.append(check_overlaps(splits))
    for check in checks:
        yield from collect(check)
