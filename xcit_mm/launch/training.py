"""Train a config with mmengine's Runner, after checks, or resume its training."""

import copy
import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner

from ..checks.doctor import check_training
from ..training.termination import TerminationHook, restored_signal
from ..utils.atomic import remove_unfinished
from ..utils.compat import load_files_by
from ..utils.config_parts import iter_parts, type_name
from ..utils.errors import ArgumentError
from ..utils.folders import lock_folder
from ..utils.output import quiet, say
from ..utils.ranks import is_first
from ..weights.lookup import load_checkpoint
from ..weights.reader import meta_of
from ..weights.work_dirs import last_checkpoint
from .report import report
from .runner import build_runner, print_into_log, read_run, stop_at_failure, write_data_anew


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

    If `finetune` wrote the config, the user's labels are read and written again first, so that
    corrections count. Then the run is checked, as by `diagnose`, and a failed check raises.

    Args:
        config: Path of a config, a model's name, or a work folder.
        resume: Whether to continue from the last checkpoint of the work folder, or the path or URL
            of the checkpoint to continue from. Without a checkpoint the run starts.
        work_dir: Folder of the run. Default: `config` if it is a work folder, else `work_dir` of
            the config, or `work_dirs/NAME`.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate to the batch size.
        cfg_options: Values that replace values in the config, by dotted key.
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
    cfg = read_run(config, work_dir, cfg_options, launcher)
    folder = Path(cfg.work_dir)
    if not resume and cfg.get("resume"):  # as mmengine means it
        resume = cfg.get("load_from") or True
    with lock_folder(folder) if is_first() else nullcontext():
        if is_first():
            remove_unfinished(folder)
        if not resume:
            check_is_new(folder)
        checkpoint = str(resume) if resume else None
        if resume is True:
            checkpoint = last_checkpoint(folder)
        if checkpoint and Path(checkpoint).is_dir():
            raise ArgumentError("resume", f"{checkpoint} is a folder: give a checkpoint in it")
        if checkpoint and is_complete(checkpoint):
            fix = "to train longer, start a new run from it, see docs/recipes.md"
            say(f"the run is complete: {checkpoint} is its end; {fix}")
            return folder
        if not checkpoint:
            write_data_anew(cfg)
        run(prepare(cfg, checkpoint, amp, auto_scale_lr, skip_checks))
    return folder


def check_is_new(work_dir: Path) -> None:
    """Raise FileExistsError if a work folder has a checkpoint."""
    if last_checkpoint(work_dir):
        problem = f"{work_dir} has a checkpoint, and a work folder is one run"
        raise FileExistsError(f"{problem}: resume it, or give another")


def is_complete(checkpoint: str) -> bool:
    """Return whether a run that resumes from a checkpoint has nothing left to train.

    `ResumableCheckpointHook` and `StrictLoadHook` compare its schedule and classes with the config.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it cannot be read, or holds weights without the state of a run.
    """
    with quiet():
        state = load_checkpoint(checkpoint)
    is_run = isinstance(state, Mapping) and {"message_hub", "optimizer"} <= state.keys()
    # mmengine would run the text `config` of mmcv 1.
    if not is_run or "config" in meta_of(state):
        problem = f"cannot resume from {checkpoint}, which does not have the state of a run"
        raise ValueError(f"{problem}: start a new run from it, with load_from in the config")
    info = state["message_hub"].get("runtime_info") or {}
    return state["meta"]["iter"] >= info.get("max_iters", math.inf)


def prepare(
    cfg: Config, checkpoint: str | None, amp: bool, auto_scale_lr: bool, skip_checks: bool
) -> Runner:
    """Change a config by the arguments of `train`, check the training, and build its Runner.

    Args:
        checkpoint: The checkpoint from which the run resumes, or None for a new run.
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
    return build_runner(cfg)


def run(runner: Runner) -> None:
    """Train, and print where the results are."""
    runner.register_hook(TerminationHook())
    with restored_signal(), print_into_log(runner), load_files_by(load_checkpoint):
        runner.train()
    if is_first():
        report(Path(runner.cfg.work_dir), runner.cfg)


def change_training(cfg: Config, amp: bool, auto_scale_lr: bool) -> None:
    """Change a config by arguments of `train`.

    Raises:
        ArgumentError: If the config's optimizer wrapper sets a precision itself.
        ValueError: If its model does not train in float16. Heads of MaskFormer divide the loss of
            masks by the number of masks times that of points, which overflows.
    """
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper.setdefault("type", "OptimWrapper")
    name = type_name(wrapper)
    if amp and name not in ("OptimWrapper", "AmpOptimWrapper", "CPUAmpOptimWrapper"):
        raise ArgumentError("amp", f"optim_wrapper.type={name} sets a precision: leave it out")
    if amp or name == "AmpOptimWrapper":
        is_on_cpu = get_device() == "cpu"  # in bfloat16
        wrapper["type"] = "mmengine.CPUAmpOptimWrapper" if is_on_cpu else "AmpOptimWrapper"
        parts = map(type_name, iter_parts(cfg.model))
        overflows = {"MaskFormerHead", "Mask2FormerHead"}.intersection(parts)
        if overflows and not is_on_cpu and wrapper.get("dtype") != "bfloat16":
            raise ValueError("the loss of masks is 0 in float16: set optim_wrapper.dtype=bfloat16")
    if auto_scale_lr:
        cfg.merge_from_dict({"auto_scale_lr.enable": True})
