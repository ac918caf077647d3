"""Copies of a data set that the library reads, beside the config. They follow the source."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..utils.atomic import atomic_write
from .dataset import Dataset
from .files import list_files
from .formats import read_objects
from .maps import read_maps

_STATE = "source.json"


def write_copies(dataset: Dataset[Any], source: Path, copies: Path) -> dict[str, dict[str, Any]]:
    """Write a data set for its library, and the state of the files that it was read from.

    Returns:
        The arguments by which the library reads 'train' and, if photos are held out, 'val'.
    """
    state = dict(_describe_state(dataset), files=_fingerprint(source))
    arguments = {"train": dataset.training.write(copies, "train", dataset.classes)}
    if dataset.held_out:
        arguments["val"] = dataset.held_out.write(copies, "val", dataset.classes)
    with atomic_write(copies / _STATE) as file:
        file.write(json.dumps(state).encode())
    return arguments


def _describe_state(dataset: Dataset[Any]) -> dict[str, Any]:
    """Return the properties of a data set that a written config depends on."""
    return dict(classes=list(dataset.classes), held_out=bool(dataset.held_out))


def _fingerprint(source: Path) -> str:
    """Return a hash of the names, sizes and times of all files of a data set."""
    files = [source] if source.is_file() else list_files(source)
    total = hashlib.sha256()
    for path in files:
        stat = path.stat()
        total.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return total.hexdigest()


def refresh_copies(cfg: Config) -> None:
    """Write the copies of a config of `train --from` again if the source has changed, or if they
    are missing.

    Raises:
        FileNotFoundError: If the source has moved.
        ValueError: If its classes have changed, or it cannot be read.
    """
    source = cfg.get("source") or {}
    if not source.get("copies"):
        return
    path = Path(source["path"])
    copies = Path(source["copies"])
    is_written = (copies / _STATE).is_file()
    state = json.loads((copies / _STATE).read_bytes()) if is_written else {}
    written_from = state.pop("files", None)
    if path.exists() and _fingerprint(path) == written_from:
        return
    dataset: Dataset[Any] = read_objects(path) if cfg.default_scope == "mmdet" else read_maps(path)
    new_state = _describe_state(dataset)
    if is_written and new_state != state:
        problem = f"{path} has {new_state}, and had {state} when the config was written"
        raise ValueError(f"{problem}: write another config by --from")
    write_copies(dataset, path, copies)
    reason = f"{path} has changed" if is_written else f"{copies} is missing"
    print(f"{reason}; {copies} is written again: {dataset.describe()}", file=sys.stderr)
