"""Checks of a checkpoint to resume from."""

from pathlib import Path

from torch import Tensor

from ..training.nonfinite_search import is_finite
from ..weights.reader import load_checkpoint

__all__ = ["check_resume"]


def check_resume(checkpoint: str, work_dir: Path) -> None:
    """Check that a run can resume from a checkpoint.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        work_dir: Folder of the run.

    Raises:
        ValueError: If the checkpoint is missing, broken or not finite, or holds weights only. The message names the
            newest complete checkpoint of the folder.
    """
    try:
        _training_state(checkpoint)
    except (OSError, ValueError) as error:
        paths = [path for path in work_dir.glob("*.pth") if path.stem.startswith(("iter_", "epoch_", "latest"))]
        newest_first = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
        complete = next((path for path in newest_first if path != Path(checkpoint) and _is_complete(path)), None)
        fix = f"resume from {complete}: --resume {complete}" if complete else f"{work_dir} has no complete checkpoint"
        raise ValueError(f"cannot resume from {checkpoint}: {error}; {fix}") from None


def _training_state(checkpoint: str) -> dict:
    """Read a checkpoint from which mmengine can resume.

    Raises:
        OSError, ValueError: If the checkpoint is missing, broken or not finite, or holds weights only.
    """
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not {"epoch", "iter"} <= meta.keys() or content.get("message_hub") is None:
        raise ValueError("it holds weights, not the state of a training run of mmengine: start from it with load_from")
    state = content.get("state_dict")
    values = state.values() if isinstance(state, dict) else ()
    if not all(is_finite(value) for value in values if isinstance(value, Tensor)):  # nested lists may have no end
        raise ValueError("its weights or BatchNorm statistics are not finite")
    return content


def _is_complete(path: Path) -> bool:
    try:
        return bool(_training_state(str(path)))
    except (OSError, ValueError):
        return False
