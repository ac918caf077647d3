"""What the library cannot read as it is, in a folder beside the config, as long as it is true."""

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


def write_copies(dataset: Dataset[Any], source: Path, copies: Path) -> bool:
    """Write the splits that the library cannot read as they are. Return whether there are any."""
    state = _fingerprint(source)
    splits = {name: split for name, split in dataset.splits.items() if not split.is_written}
    for name, split in splits.items():
        split.write(copies, name)
    if splits:
        _write_state(copies, dict(files=state, classes=dataset.classes, splits=list(splits)))
    return bool(splits)


def _write_state(copies: Path, state: dict[str, Any]) -> None:
    with atomic_write(copies / _STATE) as file:
        file.write(json.dumps(state).encode())


def _fingerprint(source: Path) -> str:
    """Return a hash of the names, sizes and times of all files of a data set."""
    files = [source] if source.is_file() else list_files(source)
    total = hashlib.sha256()
    for path in files:
        stat = path.stat()
        total.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return total.hexdigest()


def refresh_copies(cfg: Config, prints: bool) -> None:
    """Write the copies that a config of `train --from` reads again if their source has changed.

    Raises:
        FileNotFoundError: If the source has moved.
        ValueError: If its classes have changed, or it cannot be read.
    """
    source = cfg.get("source") or {}
    if not source.get("copies") or not Path(source["copies"], _STATE).is_file():
        return
    copies = Path(source["copies"])
    state = json.loads((copies / _STATE).read_bytes())
    path = Path(source["path"])
    files = _fingerprint(path) if path.exists() else ""
    if files == state["files"]:
        return
    dataset: Dataset[Any] = read_objects(path) if cfg.default_scope == "mmdet" else read_maps(path)
    if list(dataset.classes) != state["classes"]:
        problem = f"{path} has the classes {dataset.classes}, and had {tuple(state['classes'])}"
        raise ValueError(f"{problem} when the config was written: write another by --from")
    for name in state["splits"]:
        if name in dataset.splits:
            dataset.splits[name].write(copies, name)
    _write_state(copies, state | dict(files=files))
    if prints:
        print(
            f"{path} has changed, {copies} is written again: {dataset.describe()}", file=sys.stderr
        )
