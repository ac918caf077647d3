"""Train and test by mmengine's Runner, after checks."""

import argparse
import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import Runner

from ..checks.doctor import check_test, check_training
from ..checks.findings import Finding
from ..training.console import ConsoleHook
from ..training.termination import TerminationHook
from ..utils.atomic import restored_on_error
from ..utils.cli import cli_main, parse_cfg_options
from ..utils.compat import load_files_by
from ..utils.configs import evaluators, part_class, read_config, type_name
from ..utils.folders import lock_folder
from ..utils.output import quiet
from ..weights.reader import check_checkpoint
from ..weights.zoo import find_config, find_model, load_checkpoint
from .config import write_data_anew
from .model import iter_parts
from .report import report
from .runner import QuietRunner, print_into_log
from .state import find_checkpoint, is_complete

INTERRUPTED = "--resume resumes from the last checkpoint"


def train(options: argparse.Namespace) -> int:
    """Check a training, then run it, and return the exit code. An error is one line.

    Args:
        options: Options of `xcit-mm train`.
    """
    return cli_main(lambda: run_training(options), INTERRUPTED, options.verbose)


def test(options: argparse.Namespace) -> int:
    """Check a test, then run it, and return the exit code. An error is one line.

    Args:
        options: Options of `xcit-mm test`.
    """
    return cli_main(lambda: _test(options), "the test has no scores yet", options.verbose)


def run_training(
    options: argparse.Namespace,
    written: Sequence[Path] = (),
    write: Callable[[], None] = lambda: None,
) -> None:
    """Check a training, then run it. A work folder is one run: it has no checkpoint yet, or the run
    resumes.

    Args:
        options: Options of `xcit-mm train`.
        written: The config and the data that `write` writes. After an error before the start they
            are what they were. Without them, the data of the config are written anew at a start.
        write: Function that writes the config and its data.
    """
    with ExitStack() as lock:
        with restored_on_error(written):
            write()
            cfg = _read_run(find_config(options.config), options)
            folder = Path(cfg.work_dir)
            if _is_first():
                lock.enter_context(lock_folder(folder))
            with quiet():
                change_training(cfg, options)
                checkpoint = find_checkpoint(cfg, options.resume)
                if checkpoint and is_complete(checkpoint, cfg):
                    fix = "a longer run starts from it by load_from, see docs/recipes.md"
                    _say(f"the run is complete: {checkpoint} is its end; {fix}")
                    return
                if _is_first() and not (checkpoint or written):
                    write_data_anew(cfg)
                cfg.resume = checkpoint is not None
                checked = copy.deepcopy(cfg)
                if checkpoint:
                    cfg.load_from = checkpoint
                    checked.load_from = None  # which the run does not read
                start = cfg.get("load_from") or "the config's initial weights"
                _say(f"{type_name(cfg.model)} from {start}, in {folder}")
                _check(check_training(checked), options)
            runner = _build_runner(cfg)
        runner.register_hook(TerminationHook())
        for config in written[:1]:
            _say(f"written: {config}; edit it, and train it by xcit-mm train {config}")
        with print_into_log(runner), load_files_by(load_checkpoint):
            runner.train()
        if _is_first():
            for line in report(folder, cfg):
                _say(line)


def _test(options: argparse.Namespace) -> None:
    config, checkpoint = find_model(options.config, options.checkpoint)
    cfg = _read_run(config, options)
    with quiet():
        if _is_first():
            write_data_anew(cfg)
        check_checkpoint(checkpoint)
        _check(check_test(copy.deepcopy(cfg), checkpoint), options)
    cfg.load_from = checkpoint
    cfg.resume = False
    for name in ("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler"):
        cfg[name] = None
    runner = _build_runner(cfg)
    with print_into_log(runner), load_files_by(load_checkpoint):
        runner.test()


def _read_run(config: str, options: argparse.Namespace) -> Config:
    """Read the config of a run, with its folder and launcher."""
    cfg = read_config(config, parse_cfg_options(options.cfg_options))
    cfg.launcher = options.launcher
    cfg.work_dir = str(options.work_dir or cfg.get("work_dir") or f"work_dirs/{Path(config).stem}")
    return cfg


def change_training(cfg: Config, options: argparse.Namespace) -> None:
    """Change a config by the options of a training. Raise ValueError if they do not fit it."""
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper.setdefault("type", "OptimWrapper")
    name = type_name(wrapper)
    if options.amp and name not in ("OptimWrapper", "AmpOptimWrapper", "CPUAmpOptimWrapper"):
        raise ValueError(f"--amp: optim_wrapper.type={wrapper['type']} has a precision of its own")
    if options.amp or name == "AmpOptimWrapper":
        is_on_cpu = get_device() == "cpu"  # in bfloat16
        wrapper["type"] = "mmengine.CPUAmpOptimWrapper" if is_on_cpu else "AmpOptimWrapper"
        heads = {type_name(part) for part in iter_parts(cfg.model)}
        # They divide the loss of masks by the number of masks times that of points.
        overflows = bool(heads & {"MaskFormerHead", "Mask2FormerHead"})
        if overflows and not is_on_cpu and wrapper.get("dtype") != "bfloat16":
            problem = "the loss of masks is 0 in float16, which overflows"
            raise ValueError(f"{problem}: set optim_wrapper.dtype=bfloat16")
    if options.auto_scale_lr:
        cfg.merge_from_dict({"auto_scale_lr.enable": True})


def _check(findings: Iterable[Finding], options: argparse.Namespace) -> None:
    """Print notes, and raise ValueError for the first failure, unless checks are skipped. Other
    processes wait in mmengine for the first.
    """
    if options.skip_checks or not _is_first():
        return
    for finding in findings:
        if finding.level == "FAIL":
            fix = "--skip-checks starts the run without checks"
            raise ValueError(f"{finding.message()} ({fix})")
        if finding.level == "note":
            _say(str(finding))


def _build_runner(cfg: Config) -> Runner:
    """Build the Runner that a config names, by default mmengine's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = RUNNERS.build(cfg) if "runner_type" in cfg else QuietRunner.from_cfg(cfg)
    runner.register_hook(ConsoleHook(sys.stdout))
    if _only_counts_masks(cfg):
        from ..prediction.masks import return_crops  # which takes a second

        return_crops(runner.model, encodes=True)
    return runner


def _only_counts_masks(cfg: Config) -> bool:
    """Return whether masks are scored by CocoMetric, and no hook draws them or may read them.

    Then they need not be tensors of the photo's size: 4.8 GB for 100 objects in 8000 x 6000 pixels.
    """
    metrics = evaluators(cfg, "val") + evaluators(cfg, "test")
    hooks = cfg.get("default_hooks") or {}
    is_drawn = (hooks.get("visualization") or {}).get("draw", False)
    own_hooks = [part_class(hook, HOOKS) for hook in cfg.get("custom_hooks") or []]
    libraries = {hook.__module__.partition(".")[0] for hook in own_hooks if hook}
    is_read = is_drawn or not libraries <= {"mmengine", "xcit_mm"}
    return not is_read and {type_name(metric) for metric in metrics} == {"CocoMetric"}


def _say(line: str) -> None:
    if _is_first():
        print(line, file=sys.stderr)


def _is_first() -> bool:
    """Return whether this is the first process of a run, which alone checks, prints and writes."""
    return os.environ.get("RANK", "0") == "0"  # of torchrun
