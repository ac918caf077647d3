"""The checks of a run: the doctor prints what they find, and a failure stops the start of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mmengine.config import Config

from ..utils.cli import parse_cfg_options
from ..utils.configs import read_config
from ..utils.errors import reason
from ..utils.scripts import find_script
from ..weights.zoo import find_config
from .classes import check_classes
from .data import check_data_sets, check_overlaps, check_paths
from .findings import Finding, collect, fail
from .model import CheckedModel, check_forward, check_rates
from .run_config import ConfiguredSplit, RunConfig, has_separate_test
from .weights import check_learned_classes, check_weights

SPLITS = ("train", "val")


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
        find_script(cfg, config, "train")
    except Exception as error:  # a config is a program
        yield fail("", reason(error), "correct the config")
        return
    yield from check_training(cfg, [*SPLITS, "test"] if has_separate_test(cfg) else SPLITS)


def check_training(cfg: Config, names: Sequence[str] = SPLITS) -> Iterator[Finding]:
    """Check data, model and weights of a training. Nothing is downloaded.

    Args:
        names: The splits whose data are checked.
    """
    run = RunConfig(cfg, names)
    model = CheckedModel(cfg)
    checks = [check_rates(cfg), check_weights(run, model.module)]
    yield from _run_checks(run.splits, run.splits, model, checks)


def check_test(cfg: Config, checkpoint: str | None = None) -> Iterator[Finding]:
    """Check data and model of a test.

    Args:
        checkpoint: Path, URL or name of the weights, whose classes are compared with the data.
    """
    splits = RunConfig(cfg, ["train", "test"]).splits  # train is checked for leaks
    checks = [check_learned_classes(cfg, checkpoint)] if checkpoint else []
    yield from _run_checks(splits, ["test"], CheckedModel(cfg), checks)


def _run_checks(
    splits: Mapping[str, ConfiguredSplit],
    names: Iterable[str],
    model: CheckedModel,
    checks: Sequence[Iterator[Finding]],
) -> Iterator[Finding]:
    """Check the model and the named splits, and run checks of a training or a test. The photos of
    no split may be trained on. What takes long is checked last.
    """
    checked = [splits[name] for name in names]
    yield from check_paths(checked)
    yield from model.failures
    for check in (
        check_classes(checked, model.heads),
        *checks,
        check_forward(model.module),
        *(check_data_sets(split, model.heads) for split in checked),
        check_overlaps(splits),
    ):
        yield from collect(check)
