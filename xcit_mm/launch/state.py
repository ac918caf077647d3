"""The checkpoint from which a training resumes: found, whole, and of the same classes and data."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..utils.configs import plain_values
from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.reader import find_damage
from ..weights.work_dirs import check_same_data, last_checkpoint
from ..weights.zoo import load_checkpoint


def find_state(checkpoint: str, work_dir: Path, cfg: Config) -> tuple[str, dict[str, Any]] | None:
    """Return path and content of the checkpoint from which a run resumes.

    Args:
        checkpoint: A path or URL, or '' for the last checkpoint of the work folder, if it has one.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it is damaged, with the newest checkpoint that is whole; if it holds weights
            without the state of a run, with the checkpoint to take; if it has learned other
            classes; or if nobody chose it and it is of an earlier run on other data.
    """
    path = checkpoint or _find_last_checkpoint(work_dir)
    if path is None:
        return None
    try:
        saved = _load_whole(path)
    except ValueError as error:
        whole = None if checkpoint else _find_newest_whole_checkpoint(work_dir)
        if whole is None:
            raise
        fix = f"resume from it with --resume {whole}"
        raise ValueError(f"{error}; an earlier checkpoint is not damaged: {fix}") from None
    _check_state(path, saved)
    check_same_classes(path, learned_classes(saved), configured_classes(cfg, "train"))
    if not checkpoint:
        fix = f"give another --work-dir, or --resume {path}"
        check_same_data(path, saved, cfg.to_dict(), fix)
    return path, saved


def training_length(cfg: Config) -> tuple[int, str]:
    """Return the length of a training and its unit, 'iters' or 'epochs'; 0 if it is unknown."""
    loop = cfg.get("train_cfg") or {}
    unit = "epochs" if loop.get("max_epochs") else "iters"
    return loop.get(f"max_{unit}") or 0, unit


def _find_last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run names as last, or the newest: a kill may lose the name."""
    checkpoint = last_checkpoint(work_dir)
    if checkpoint and ("://" in checkpoint or Path(checkpoint).is_file()):
        return checkpoint
    return next(map(str, _saved_checkpoints(work_dir)), None)


def _saved_checkpoints(work_dir: Path) -> list[Path]:
    """List the checkpoints of a run, the newest first."""
    paths = [*work_dir.glob("iter_*.pth"), *work_dir.glob("epoch_*.pth")]
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def _load_whole(path: str) -> Any:
    """Read a checkpoint. Raise ValueError if a power failure has left a part of it unwritten."""
    saved = load_checkpoint(path)
    damage = None if "://" in path else find_damage(Path(path))
    if damage:
        raise ValueError(f"cannot resume from {path}: its record {damage} is damaged")
    return saved


def _find_newest_whole_checkpoint(work_dir: Path) -> Path | None:
    for path in _saved_checkpoints(work_dir):
        with suppress(ValueError):
            _load_whole(str(path))
            return path
    return None


def _check_state(path: str, saved: Any) -> None:
    """Raise ValueError unless a checkpoint holds the state of a run of mmengine."""
    meta: Any = saved.get("meta") if isinstance(saved, dict) else None
    has_position = isinstance(meta, dict) and {"epoch", "iter"} <= meta.keys()
    if not has_position or saved.get("message_hub") is None:
        problem = "it holds weights, not the state of a run: start from it with load_from"
        raise ValueError(f"cannot resume from {path}: {problem}")
    if "optimizer" not in saved:
        folder = Path(path).parent
        same = [folder / f"iter_{meta['iter']}.pth", folder / f"epoch_{meta['epoch']}.pth"]
        last = _find_last_checkpoint(folder) or "a checkpoint of iterations or epochs"
        instead = next((file for file in same if file.is_file()), last)
        problem = f"it holds no optimizer, like every best checkpoint: take {instead}"
        raise ValueError(f"cannot resume from {path}: {problem}")


def compare_source(path: str, saved: dict[str, Any], cfg: Config) -> None:
    """Print a line if the data that `train --from` copied are not those of a checkpoint's run."""
    try:
        trained = plain_values(saved["meta"].get("cfg") or "").get("source") or {}
    except ValueError:  # a config that would have to be run
        return
    source = cfg.get("source") or {}
    if "content" in trained and trained["content"] != source.get("content", trained["content"]):
        problem = f"the data in {source['path']} are not those that {path} was trained on"
        print(f"note: {problem}; the run goes on with what is there now", file=sys.stderr)
