"""The folder of a training: its config, its last checkpoint and the best that the run recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.errors import preview
from .reader import load_from_file

CHECKPOINT_SUFFIXES = (".pth", ".safetensors")

# Beginnings of the keys under which mmengine's CheckpointHook records the best. A metric follows if
# there are several.
BEST = "best_ckpt"
BEST_SCORE = "best_score"


class Record(NamedTuple):
    """What a checkpoint of mmengine says about its run.

    Attributes:
        run: Name of the run, which keeps it when it resumes.
        time: When the file was written, as text that sorts.
        iteration: Number of iterations trained.
        best: The best checkpoint so far, its file name and its score, by the metric. With one
            metric, its name is ''.
    """

    path: Path
    run: str
    time: str
    iteration: int
    best: dict[str, tuple[str, float]]

    @classmethod
    def of(cls, path: Path, checkpoint: Any) -> "Record | None":
        """Return the record in the content of a file, or None if it has none."""
        if not isinstance(checkpoint, Mapping) or "message_hub" not in checkpoint:
            return None
        meta = checkpoint.get("meta") or {}
        info = checkpoint["message_hub"].get("runtime_info") or {}
        best = {}
        for key, file in info.items():
            metric = key.removeprefix(BEST)
            if key.startswith(BEST) and file:
                best[metric] = (Path(file).name, float(info[f"{BEST_SCORE}{metric}"]))
        run = str(info.get("experiment_name"))
        return cls(path, run, str(meta.get("time")), meta.get("iter", 0), best)

    @property
    def own_metric(self) -> str | None:
        """The metric by which the file itself was the best when it was saved."""
        for metric, (name, _) in self.best.items():
            if name == self.path.name:
                return metric
        return None

    @property
    def order(self) -> tuple[str, int, bool]:
        """The order of writing. In the same second, a best checkpoint follows the last."""
        return self.time, self.iteration, self.own_metric is not None


def find_config_in(folder: Path) -> str:
    """Return the only config of a folder.

    Raises:
        FileNotFoundError: If the folder has none or several.
    """
    configs = sorted(folder.glob("*.py"))
    if len(configs) != 1:
        names = ", ".join(path.name for path in configs) or "none"
        raise FileNotFoundError(
            f"{folder} must have one config, but has {names}: give config and checkpoint"
        )
    return str(configs[0])


def find_checkpoint_in(folder: Path) -> str | None:
    """Return the best checkpoint of a training's folder, or its last; or the only checkpoint of
    another folder.

    The best is the one that the newest run in the folder recorded.

    Raises:
        ValueError: If the folder has several checkpoints, none of which is the best or the last; if
            a file cannot be read; or if files contradict each other.
    """
    last = last_checkpoint(folder)
    best = _find_best(folder, last)
    if best or last:
        return best or last
    files = sorted(path for suffix in CHECKPOINT_SUFFIXES for path in folder.glob(f"*{suffix}"))
    return _take_only(folder, files)


def _take_only(folder: Path, files: list[Path]) -> str | None:
    if len(files) > 1:
        names = preview([path.name for path in files])
        raise ValueError(
            f"{folder} has the checkpoints {names}: give one, or name the best best_*.pth"
        )
    return str(files[0]) if files else None


def _find_best(folder: Path, last: str | None) -> str | None:
    paths = sorted(folder.glob("best_*.pth"))
    if not paths:
        return None
    has_last = last is not None and Path(last).is_file()
    last_paths = [Path(str(last))] if has_last else []
    records = [record for record in map(read_record, [*paths, *last_paths]) if record]
    newest = max(records, key=lambda record: record.order, default=None)
    if newest is None:  # weights alone, as they are published
        return _take_only(folder, paths)
    for metric, (name, score) in newest.best.items():
        if (folder / name).is_file():
            of_run = [record for record in records if record.run == newest.run]
            _check_best(of_run, metric, name, score)
            return str(folder / name)
    return None


def _check_best(records: list[Record], metric: str, name: str, score: float) -> None:
    """Raise ValueError if a checkpoint of a run has a better score than the recorded best."""
    for record in records:
        if record.own_metric != metric:
            continue
        other_score = record.best[metric][1]
        is_better = other_score < score if "loss" in name else other_score > score
        if is_better:
            problem = f"{record.path} has the score {other_score:g}, but the run recorded {name}"
            raise ValueError(f"{problem} of {score:g} as its best: remove one, or give one")


def find_newer_best(folder: Path, last: Record) -> Path | None:
    """Return the best checkpoint that a run saved right after its last, or None."""
    newer = []
    for path in folder.glob("best_*.pth"):
        record = read_record(path)
        is_of_last = record and (record.run, record.iteration) == (last.run, last.iteration)
        if record and is_of_last and record.order > last.order:
            newer.append(path)
    return max(newer, key=lambda path: path.stat().st_mtime_ns, default=None)


def own_best(folder: Path, info: dict[str, Any]) -> list[str]:
    """Return the names of the best checkpoints of a run that resumes in a folder, and forget those
    in other folders, but not their scores.

    Args:
        info: What the run has recorded, which is changed.
    """
    names = []
    for key, file in info.items():
        if key.startswith(BEST) and file:
            path = folder / Path(file).name
            names.append(path.name)
            info[key] = str(path) if path.is_file() else None
    return names


def read_record(path: Path) -> Record | None:
    """Read the record of a checkpoint, whose tensors stay on the disk."""
    return Record.of(path, load_from_file(path))


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, or None.

    The run wrote its path, but the folder may have been moved or copied since. The file of that
    name in the folder itself is taken, unless the run saved it in a folder that is no work folder,
    or on a server.
    """
    pointer = work_dir / "last_checkpoint"
    saved = pointer.read_text().strip() if pointer.is_file() else ""
    if not saved:  # a kill may leave an empty file
        return None
    moved = work_dir / Path(saved).name
    original = Path(saved)
    is_in_work_dir = (original.parent / pointer.name).exists()
    is_elsewhere = "://" in saved or (original.is_file() and not is_in_work_dir)
    return saved if is_elsewhere and not moved.is_file() else str(moved)
