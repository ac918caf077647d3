"""Where a training starts: at a checkpoint of the same run, or at the config's weights."""

import math
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config

from ..training.schedule import check_schedule
from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.reader import meta_of
from ..weights.work_dirs import last_checkpoint
from ..weights.zoo import load_checkpoint


def find_checkpoint(cfg: Config, resume: str | None) -> str | None:
    """Return the checkpoint from which a training resumes, or None if it starts.

    Args:
        resume: The checkpoint, '' for the last of the work folder if it has one, or None to start.

    Raises:
        FileExistsError: If a run starts in a folder with a checkpoint.
    """
    if resume is None and cfg.get("resume"):  # as mmengine means it
        resume = cfg.get("load_from") or ""
    last = last_checkpoint(Path(cfg.work_dir))
    if resume is None and last:
        problem = f"{cfg.work_dir} has a checkpoint, and a work folder is one run"
        raise FileExistsError(f"{problem}: --resume continues it, --work-dir names another folder")
    return resume or last


def is_complete(path: str, cfg: Config) -> bool:
    """Return whether the checkpoint at a path or URL, from which a run resumes, is at its end.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it cannot be read, holds weights without the state of a run, or has other
            classes or another schedule than the config.
    """
    state = load_checkpoint(path)
    keys = set(state) if isinstance(state, Mapping) else set()
    # mmengine would run the text `config` of mmcv 1.
    if not {"message_hub", "optimizer"} <= keys or "config" in meta_of(state):
        problem = "it holds no state of a run, as best checkpoints and published weights"
        raise ValueError(f"cannot resume from {path}: {problem}: start from it by load_from")
    check_same_classes(path, learned_classes(state), configured_classes(cfg, "train"))
    check_schedule(cfg, state)
    info = state["message_hub"].get("runtime_info") or {}
    return state["meta"]["iter"] >= info.get("max_iters", math.inf)
