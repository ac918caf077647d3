"""The checkpoint from which a training resumes: found, whole, and not at its end."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.reader import find_damage
from ..weights.work_dirs import check_same_data, last_checkpoint
from ..weights.zoo import load_checkpoint


def find_state(checkpoint: str, work_dir: Path) -> tuple[str, dict[str, Any]] | None:
    """Return path and content of the checkpoint from which a run resumes.

    Args:
        checkpoint: A path or URL, or '' for the last checkpoint of the work folder, if it has one.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it is damaged, with the newest checkpoint that is whole, or if it holds
            weights without the state of a run, with the checkpoint to take.
    """
    path = checkpoint or _find_last_checkpoint(work_dir)
    if path is None:
        return None
    try:
        content = _load_whole(path)
    except ValueError as error:
        whole = None if checkpoint else _find_newest_whole(work_dir)
        if whole is None:
            raise
        hint = f"{whole} is whole: resume from it with --resume {whole}"
        raise ValueError(f"{error}; {hint}") from None
    _check_state(path, content)
    return path, content


def check_is_of_config(
    checkpoint: str, content: dict[str, Any], cfg: Config, is_chosen: bool
) -> None:
    """Raise ValueError if a checkpoint has learned other classes than those of a config, or if it
    is the last of an earlier run on other data in a work folder, which nobody chose.
    """
    classes = configured_classes(cfg, "train")
    check_same_classes(checkpoint, learned_classes(content), classes)
    if not is_chosen:
        fix = f"give another --work-dir, or resume from it with --resume {checkpoint}"
        check_same_data(checkpoint, content, cfg.to_dict(), fix)


def training_length(cfg: Config) -> tuple[int, str]:
    """Return the length of a training and its unit, 'iters' or 'epochs'; 0 if it is unknown."""
    loop = cfg.get("train_cfg") or {}
    unit = "epochs" if loop.get("max_epochs") else "iters"
    return loop.get(f"max_{unit}") or 0, unit


def _find_last_checkpoint(work_dir: Path) -> str | None:
    """Return the last checkpoint of a run, or the newest: a kill may leave an empty pointer."""
    checkpoint = last_checkpoint(work_dir)
    if checkpoint and ("://" in checkpoint or Path(checkpoint).is_file()):
        return checkpoint
    saved = _saved_checkpoints(work_dir)
    return str(saved[0]) if saved else None


def _saved_checkpoints(work_dir: Path) -> list[Path]:
    """List the checkpoints of a run, the newest first."""
    paths = [*work_dir.glob("iter_*.pth"), *work_dir.glob("epoch_*.pth")]
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def _load_whole(path: str) -> Any:
    """Read a checkpoint. Raise ValueError if a power failure has left a part of it unwritten."""
    content = load_checkpoint(path)
    damage = None if "://" in path else find_damage(Path(path))
    if damage:
        raise ValueError(f"cannot resume from {path}: its record {damage} is damaged")
    return content


def _find_newest_whole(work_dir: Path) -> Path | None:
    for path in _saved_checkpoints(work_dir):
        with suppress(ValueError):
            _load_whole(str(path))
            return path
    return None


def _check_state(path: str, content: Any) -> None:
    """Raise ValueError unless a checkpoint holds the state of a run of mmengine."""
    meta: Any = content.get("meta") if isinstance(content, dict) else None
    has_position = isinstance(meta, dict) and {"epoch", "iter"} <= meta.keys()
    if not has_position or content.get("message_hub") is None:
        problem = "it holds weights, not the state of a run: start from it with load_from"
        raise ValueError(f"cannot resume from {path}: {problem}")
    if "optimizer" not in content:
        folder = Path(path).parent
        names = (f"iter_{meta['iter']}.pth", f"epoch_{meta['epoch']}.pth")
        whole = [str(folder / name) for name in names if (folder / name).is_file()]
        last = _find_last_checkpoint(folder) or "a checkpoint of iterations or epochs"
        instead = whole[0] if whole else last
        problem = f"it holds no optimizer, as the best checkpoints: take {instead}"
        raise ValueError(f"cannot resume from {path}: {problem}")
