"""The checkpoint from which a training resumes."""

import math
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config

from ..weights.lookup import load_checkpoint
from ..weights.reader import meta_of
from ..weights.work_dirs import last_checkpoint


def find_checkpoint(cfg: Config, resume: bool | str | Path) -> str | None:
    """Return the checkpoint from which a training resumes, or None if it starts.

    Args:
        resume: As in `train`.

    Raises:
        FileExistsError: If a run starts in a folder with a checkpoint.
    """
    if not resume and cfg.get("resume"):  # as mmengine means it
        resume = cfg.get("load_from") or True
    if not resume:
        check_is_new(cfg.work_dir)
        return None
    return last_checkpoint(Path(cfg.work_dir)) if resume is True else str(resume)


def check_is_new(work_dir: str | Path) -> None:
    """Raise FileExistsError if a work folder has a checkpoint."""
    if last_checkpoint(Path(work_dir)):
        problem = f"{work_dir} has a checkpoint, and a work folder is one run"
        raise FileExistsError(f"{problem}: resume it, or give another work_dir")


def is_complete(path: str) -> bool:
    """Return whether the checkpoint from which a run resumes is at its end.

    `ResumableCheckpointHook` and `StrictLoadHook` compare its schedule and classes with the config.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it cannot be read, or holds weights without the state of a run.
    """
    state = load_checkpoint(path)
    keys = set(state) if isinstance(state, Mapping) else set()
    # mmengine would run the text `config` of mmcv 1.
    if not {"message_hub", "optimizer"} <= keys or "config" in meta_of(state):
        problem = "it holds no state of a run, as best checkpoints and published weights"
        raise ValueError(f"cannot resume from {path}: {problem}: start from it by load_from")
    info = state["message_hub"].get("runtime_info") or {}
    return state["meta"]["iter"] >= info.get("max_iters", math.inf)
