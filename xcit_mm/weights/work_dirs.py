"""The folder of a training: its config, its last checkpoint and the best that the run recorded."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.configs import leaf_datasets, plain_values
from ..utils.errors import preview
from .reader import load_from_file, meta_of

CHECKPOINT_SUFFIXES = (".pth", ".safetensors")

# Beginning of the keys under which mmengine's CheckpointHook stores the best checkpoint.
# The name of a metric follows if there are several.
BEST = "best_ckpt"


class SavedRun(NamedTuple):
    """What a checkpoint of mmengine says about its run."""

    path: Path  # of the checkpoint
    name: str  # of the run, which a resumed run keeps
    time: str  # of writing, as text that sorts
    iteration: int
    best: list[str]  # file names of the best checkpoints so far, one for each metric

    @classmethod
    def of(cls, path: Path, checkpoint: Any) -> "SavedRun | None":
        """Return what the content of a file says about its run, or None if it says nothing."""
        if not isinstance(checkpoint, Mapping) or "message_hub" not in checkpoint:
            return None
        meta = meta_of(checkpoint)
        info = checkpoint["message_hub"].get("runtime_info") or {}
        name = str(info.get("experiment_name"))
        best = list(_best_files(info).values())
        return cls(path, name, str(meta.get("time")), meta.get("iter", 0), best)

    @property
    def order(self) -> tuple[str, int, bool]:
        """The order of writing. In the same second, a best checkpoint follows the last."""
        return self.time, self.iteration, self.path.name in self.best


def find_config_in(folder: Path) -> str:
    """Return the only config of a folder, or raise FileNotFoundError if it has none or several."""
    configs = sorted(folder.glob("*.py"))
    if len(configs) != 1:
        names = ", ".join(path.name for path in configs) or "none"
        raise FileNotFoundError(
            f"{folder} must have one config, but has {names}: give config and checkpoint"
        )
    return str(configs[0])


def find_checkpoint_in(folder: Path) -> str | None:
    """Return the best checkpoint of a training's folder, which its newest run recorded, or else its
    last; or the only checkpoint of another folder.

    Raises:
        ValueError: If the folder has several checkpoints, none of which is the best or the last, or
            if a file cannot be read.
    """
    last = last_checkpoint(folder)
    best_files = sorted(folder.glob("best_*.pth"))
    if best_files:
        files = [*best_files, Path(last)] if last and Path(last).is_file() else best_files
        runs = _read_runs(files)
        if not runs:  # weights alone, as they are published
            return _get_only(folder, best_files)
        newest = max(runs, key=lambda run: run.order)
        for name in newest.best:
            if (folder / name).is_file():
                return str(folder / name)
    if last:
        return last
    files = [path for suffix in CHECKPOINT_SUFFIXES for path in folder.glob(f"*{suffix}")]
    return _get_only(folder, sorted(files))


def check_same_data(path: str | Path, checkpoint: Any, config: Mapping[str, Any], fix: str) -> None:
    """Raise ValueError, which says what to do, if a checkpoint is of a run that trained on other
    data than a config does, and if these data still exist: others may have been moved.
    """
    try:
        trained = _training_paths(plain_values(meta_of(checkpoint).get("cfg") or ""))
    except ValueError:  # a config that would have to be run
        return
    paths = _training_paths(config)
    other = [data for data in trained if data not in paths and Path(data).exists()]
    if other and paths:
        problem = f"{path} is of an earlier run on {other[0]}"
        raise ValueError(f"{problem}, the config trains on {paths[0]}: {fix}")


def _training_paths(config: Mapping[str, Any]) -> list[str]:
    """Return the real paths of the data that a config trains on. A config of `train --from` names
    as `source` the data of the user, which the library reads as copies.
    """
    source = config.get("source")
    if isinstance(source, Mapping) and source.get("path"):
        return [os.path.realpath(source["path"])]
    loader = config.get("train_dataloader") or {}
    paths = []
    for dataset in leaf_datasets(loader.get("dataset") or {}):
        prefix = dataset.get("data_prefix") or {}
        folders = prefix.values() if isinstance(prefix, Mapping) else [prefix]
        root = dataset.get("data_root") or ""
        parts = [part for part in (dataset.get("ann_file"), *folders) if part]
        paths += [os.path.join(root, part) for part in parts or [""]]
    return [path if "://" in path else os.path.realpath(path) for path in paths if path]


def _get_only(folder: Path, files: list[Path]) -> str | None:
    """Return the only file, or None without a file. Raise ValueError if there are several."""
    if len(files) > 1:
        names = preview([path.name for path in files])
        raise ValueError(
            f"{folder} has the checkpoints {names}: give one, or name the best best_*.pth"
        )
    return str(files[0]) if files else None


def _read_runs(paths: Iterable[Path]) -> list[SavedRun]:
    runs = [SavedRun.of(path, load_from_file(path)) for path in paths]
    return [run for run in runs if run]


def find_newer_best(folder: Path, last: SavedRun) -> Path | None:
    """Return the best checkpoint that a run saved right after its last, at the same iteration."""
    newer = [
        run.path
        for run in _read_runs(folder.glob("best_*.pth"))
        if (run.name, run.iteration) == (last.name, last.iteration) and run.order > last.order
    ]
    return max(newer, key=lambda path: path.stat().st_mtime_ns, default=None)


def forget_missing_best(folder: Path, info: dict[str, Any]) -> list[str]:
    """Return the names of the best checkpoints in the record `info` of a run, and remove the paths,
    but not the scores, of files that the folder lacks from the record.
    """
    names = _best_files(info)
    for key, name in names.items():
        path = folder / name
        info[key] = str(path) if path.is_file() else None
    return list(names.values())


def _best_files(info: Mapping[str, Any]) -> dict[str, str]:
    return {key: Path(file).name for key, file in info.items() if key.startswith(BEST) and file}


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, which may be missing, or None if none was saved.

    If the folder was moved or copied, the path that the run wrote is in the former folder. The file
    of that name in this folder counts. The written path itself counts only on a server, or in a
    folder that is not a work folder.
    """
    pointer = work_dir / "last_checkpoint"
    saved = pointer.read_text().strip() if pointer.is_file() else ""
    if not saved:  # a kill may leave an empty file
        return None
    file = work_dir / Path(saved).name
    if file.is_file():
        return str(file)
    is_in_former_work_dir = Path(saved).with_name(pointer.name).exists()
    is_elsewhere = "://" in saved or (Path(saved).is_file() and not is_in_former_work_dir)
    return saved if is_elsewhere else str(file)
