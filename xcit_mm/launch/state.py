"""The checkpoint from which a training resumes: of the same classes and the same schedule."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from ..training.schedule import check_schedule
from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.reader import meta_of
from ..weights.work_dirs import last_checkpoint
from ..weights.zoo import load_checkpoint


class State(NamedTuple):
    """A checkpoint of a run."""

    path: str
    content: dict[str, Any]


def find_state(checkpoint: str, work_dir: Path, cfg: Config) -> State | None:
    """Return the checkpoint from which a run resumes.

    Args:
        checkpoint: A path or URL, or '' for the last checkpoint of the work folder, if it has one.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it cannot be read, holds weights without the state of a run, or has other
            classes or another schedule than the config.
    """
    path = checkpoint or last_checkpoint(work_dir)
    if path is None:
        return None
    saved = load_checkpoint(path)
    keys = saved.keys() if isinstance(saved, Mapping) else ()
    # mmengine would run the text `config` of mmcv 1.
    if not {"message_hub", "optimizer"} <= set(keys) or "config" in meta_of(saved):
        problem = "it holds no state of a run, as best checkpoints and published weights"
        fix = "give a checkpoint of iterations or epochs, or start from it by load_from"
        raise ValueError(f"cannot resume from {path}: {problem}: {fix}")
    check_same_classes(path, learned_classes(saved), configured_classes(cfg, "train"))
    check_schedule(cfg, saved)
    return State(path, saved)
