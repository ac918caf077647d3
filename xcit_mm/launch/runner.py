"""How a training or a test starts: its config, its data, checks, and mmengine's Runner."""

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..checks.findings import Finding
from ..datasets import read_dataset, write_dataset
from ..prediction.masks import return_crops
from ..training.console import ConsoleHook
from ..utils.atomic import atomic_path
from ..utils.config_data import evaluators
from ..utils.config_parts import type_name
from ..utils.configs import read_config
from ..utils.errors import ArgumentError
from ..utils.output import quiet, say
from ..utils.ranks import is_first, rank_and_size
from ..weights.class_names import configured_classes
from ..weights.lookup import find_config

# mmengine's warning on each frozen parameter.
_IS_FROZEN = "is skipped since its requires_grad=False"
# Starts of mmengine's warnings on what its own hooks and metrics do.
_NOT_SHOWN = ('"FileClient" will be', '"HardDiskBackend" is', "The prefix is not set in metric")


def read_run(
    model: str | Path,
    work_dir: str | Path | None,
    cfg_options: Mapping[str, Any] | None,
    launcher: str = "none",
) -> Config:
    """Read the config of a run, with its folder and launcher.

    Args:
        model: As in `find_config`. If it is a work folder, that is by default the run's folder,
            even if it is a copy, or was moved since its config was written.
        launcher: 'pytorch' in a process that torchrun has started. Several without it would train
            alone, and write the same files.
    """
    is_alone = launcher == "none" and rank_and_size()[1] == 1
    is_of_torchrun = launcher == "pytorch" and "RANK" in os.environ
    if not (is_alone or is_of_torchrun):
        raise ArgumentError("launcher", f"{launcher!r}: give 'pytorch' with torchrun, else 'none'")
    options = dict(cfg_options or {})
    folder = os.path.expanduser(model)
    if Path(folder, "last_checkpoint").exists():
        options.setdefault("work_dir", folder)
    config = find_config(model)
    cfg = read_config(config, options)
    cfg.launcher = launcher
    cfg.work_dir = str(work_dir or cfg.get("work_dir") or f"work_dirs/{Path(config).stem}")
    return cfg


def write_data_anew(cfg: Config, splits: tuple[str, ...] = ("train", "val")) -> None:
    """Write the objects of a fine-tuning again, from the user's files as they are now.

    So corrected labels count. Nothing happens for a config that `finetune` did not write, or for
    tiles of a raster. Only the first process writes.

    Args:
        splits: The splits to write.

    Raises:
        ValueError: If the classes have changed, or if images for the validation were added to data
            without them, or removed. Also the errors of `read_dataset`.
    """
    paths = {name: Path(path) for name, path in (cfg.get("source") or {}).items() if path}
    folder = paths.pop("folder", None)
    if folder is None or not is_first():  # tiles are cut again by another fine-tuning
        return
    classes = configured_classes(cfg, "train") or ()
    is_detector = cfg.default_scope == "mmdet"
    dataset = read_dataset(is_detector=is_detector, order=classes, **paths)
    found = dict(classes=dataset.classes, validation=dataset.val is not None)
    known = dict(classes=classes, validation=cfg.held_out != cfg.training)
    if found != known:
        problem = f"{paths['data']} has {found}, the config {known}"
        raise ValueError(f"{problem}: fine-tune a model into another config")
    write_dataset(dataset, folder, splits)
    say(dataset.describe())


def stop_at_failure(findings: Iterable[Finding]) -> None:
    """Print the notes of the checks, and raise ValueError at the first failure.

    Only the first process checks. The others wait for it in mmengine.
    """
    if not is_first():
        return
    with quiet():
        for finding in findings:
            if finding.level == "FAIL":
                raise ValueError(f"{finding.message()} (to start nevertheless, skip the checks)")
            if finding.level == "note":
                say(str(finding))


def build_runner(cfg: Config) -> Runner:
    """Build the Runner that a config names, by default mmengine's."""
    if cfg.get("visualizer"):  # by its name, mmengine would take that of an earlier run
        cfg.visualizer.pop("name", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = RUNNERS.build(cfg) if "runner_type" in cfg else QuietRunner.from_cfg(cfg)
    runner.register_hook(ConsoleHook())
    if _only_counts_masks(cfg):
        return_crops(runner.model, encodes=True)
    return runner


def _only_counts_masks(cfg: Config) -> bool:
    """Return whether CocoMetric alone uses the predicted masks, and no hook draws them.

    Then they need not be tensors of full size, which take 4.8 GB for 100 objects in a photo of
    8000 x 6000 pixels.
    """
    metrics = evaluators(cfg, "val") + evaluators(cfg, "test")
    hooks = cfg.get("default_hooks") or {}
    is_drawn = (hooks.get("visualization") or {}).get("draw", False)
    return not is_drawn and {type_name(metric) for metric in metrics} == {"CocoMetric"}


class QuietRunner(Runner):
    """A Runner that shows only warnings, errors and lines of this package on the screen.

    If `auto_scale_lr` is enabled, a batch counts all images whose gradients accumulate in a step.
    mmengine counts only the images of one iteration.
    """

    def build_logger(self, *args: Any, **options: Any) -> MMLogger:
        def is_shown(record: logging.LogRecord) -> bool:
            message = record.getMessage()
            if message.startswith(_NOT_SHOWN) or message.endswith(_IS_FROZEN):
                return False
            return record.levelno >= logging.WARNING or hasattr(record, "on_screen")

        logger = super().build_logger(*args, **options)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.addFilter(is_shown)
                handler.setStream(sys.stderr)
        return logger

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: dict | None = None) -> None:
        if auto_scale_lr and "base_batch_size" in auto_scale_lr:
            count = (self.cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
            images = auto_scale_lr["base_batch_size"] / count  # in an iteration
            auto_scale_lr = dict(auto_scale_lr, base_batch_size=images)
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def dump_config(self) -> None:
        """Write nothing before the first checkpoint, so that config and checkpoints match."""

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        super().save_checkpoint(*args, **options)
        if is_first():
            # mmengine's method leaves an empty file while it formats the text.
            with atomic_path(Path(self.work_dir, Path(self.cfg.filename).name)) as new:
                self.cfg.dump(new)


@contextmanager
def print_into_log(runner: Runner) -> Iterator[None]:
    """Write what libraries print, warnings, and the traceback of an error to the log of a run."""
    handlers = runner.logger.handlers
    files = [handler.stream for handler in handlers if isinstance(handler, logging.FileHandler)]
    log: Any = files[0] if files else io.StringIO()  # only the first process has a file
    with redirect_stdout(log), warnings.catch_warnings():
        warnings.showwarning = lambda *args: print(warnings.formatwarning(*args[:4]))
        try:
            yield
        except Exception:
            traceback.print_exc(file=log)
            log.flush()
            raise
