"""Train a config with mmengine's Runner, after checks."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner

from ..checks.doctor import check_training
from ..training.termination import TerminationHook, restored_signal
from ..utils.compat import load_files_by
from ..utils.config_parts import iter_parts, type_name
from ..utils.errors import ArgumentError
from ..utils.folders import lock_folder
from ..utils.output import quiet, say
from ..utils.ranks import is_first
from ..weights.lookup import find_config, load_checkpoint
from .own_config import write_data_anew
from .report import report
from .resume_point import find_checkpoint, is_complete
from .runner import build_runner, print_into_log, read_run, stop_at_failure


def train(
    config: str | Path,
    *,
    resume: bool | str | Path = False,
    work_dir: str | Path | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    cfg_options: Mapping[str, Any] | None = None,
    launcher: str = "none",
    skip_checks: bool = False,
) -> Path:
    """Train a config of mmdet, mmseg or mmpretrain.

    The run is checked first, as by `diagnose`: a failed check raises before anything is written.
    Of a config that `finetune` wrote, the user's labels are read again, so that corrections count.

    Args:
        config: Path of a config, a model's name, or a work folder.
        resume: Whether to continue from the last checkpoint of the work folder, or the path or URL
            of the checkpoint to continue from. Without a checkpoint the run starts.
        work_dir: Folder of the run. Default: that of the config, or `work_dirs/NAME`.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate to the batch size.
        cfg_options: Values that replace those of the config, by dotted key.
        launcher: 'pytorch' if torchrun has started this process.
        skip_checks: Whether to start without checks.

    Returns:
        The work folder. `Predictor.from_pretrained`, `evaluate` and `export` take it as a model.

    Raises:
        FileExistsError: If the work folder already has a checkpoint, and `resume` is False.
        BlockingIOError: If another process trains in the work folder.
        ValueError: If a check fails, or an argument does not fit the config.

    Example:
        >>> from xcit_mm import train
        >>> train("nuts.py", work_dir="work_dirs/longer", cfg_options={"train_cfg.max_iters": 2000})
        PosixPath('work_dirs/longer')
    """
    cfg = read_run(find_config(config), work_dir, cfg_options, launcher)
    folder = Path(cfg.work_dir)
    with ExitStack() as stack:
        if is_first():
            stack.enter_context(lock_folder(folder))
        with quiet():
            checkpoint = find_checkpoint(cfg, resume)
            if checkpoint and is_complete(checkpoint):
                fix = "a longer run starts from it by load_from, see docs/recipes.md"
                say(f"the run is complete: {checkpoint} is its end; {fix}")
                return folder
            if not checkpoint and is_first():
                write_data_anew(cfg)
            prepare(cfg, checkpoint, amp, auto_scale_lr, skip_checks)
        run(build_runner(cfg))
    return folder


def prepare(
    cfg: Config, checkpoint: str | None, amp: bool, auto_scale_lr: bool, skip_checks: bool
) -> None:
    """Change the config of a training as `train` was called, and check the training.

    Args:
        checkpoint: The checkpoint from which the run resumes, or None if it starts.
    """
    change_training(cfg, amp, auto_scale_lr)
    cfg.resume = checkpoint is not None
    checked = copy.deepcopy(cfg)
    if checkpoint:
        cfg.load_from = checkpoint
        checked.load_from = None  # a resumed run does not read the config's own
    start = cfg.get("load_from") or "the config's initial weights"
    say(f"{type_name(cfg.model)} from {start}, in {cfg.work_dir}")
    if not skip_checks:
        stop_at_failure(check_training(checked))


def run(runner: Runner) -> None:
    """Train, and say where the results are."""
    runner.register_hook(TerminationHook())
    with restored_signal(), print_into_log(runner), load_files_by(load_checkpoint):
        runner.train()
    if is_first():
        for line in report(Path(runner.cfg.work_dir), runner.cfg):
            say(line)


def change_training(cfg: Config, amp: bool, auto_scale_lr: bool) -> None:
    """Change a config by arguments of `train`.

    Raises:
        ArgumentError: If its optimizer wrapper has a precision of its own.
        ValueError: If its model does not train in float16.
    """
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper.setdefault("type", "OptimWrapper")
    name = type_name(wrapper)
    if amp and name not in ("OptimWrapper", "AmpOptimWrapper", "CPUAmpOptimWrapper"):
        problem = f"optim_wrapper.type={wrapper['type']} has a precision of its own"
        raise ArgumentError("amp", problem)
    if amp or name == "AmpOptimWrapper":
        is_on_cpu = get_device() == "cpu"  # in bfloat16
        wrapper["type"] = "mmengine.CPUAmpOptimWrapper" if is_on_cpu else "AmpOptimWrapper"
        check_half_precision(cfg, wrapper.get("dtype"))
    if auto_scale_lr:
        cfg.merge_from_dict({"auto_scale_lr.enable": True})


def check_half_precision(cfg: Config, dtype: str | None) -> None:
    """Raise ValueError if the model of a config does not train in float16, as it would in `dtype`.

    Heads of MaskFormer divide the loss of masks by the number of masks times that of points.
    """
    heads = {type_name(part) for part in iter_parts(cfg.model)}
    overflows = bool(heads & {"MaskFormerHead", "Mask2FormerHead"})
    if overflows and get_device() != "cpu" and dtype != "bfloat16":
        problem = "the loss of masks is 0 in float16, because a divisor overflows"
        raise ValueError(f"{problem}: set optim_wrapper.dtype=bfloat16")
