"""The user's data behind a config of `train --from`, and the copies that the library reads."""

import sys
from pathlib import Path

from mmengine.config import Config

from ..datasets import Dataset, read_maps, read_objects
from ..datasets.old_writing import is_current, read_state, write_dataset
from ..weights.classes import configured_classes


def read_data(path: Path, cfg: Config) -> Dataset:
    """Read a data set of objects for a detector, else of maps. Errors are those of the readers."""
    return read_objects(path) if cfg.default_scope == "mmdet" else read_maps(path)


def refresh_dataset_copies(cfg: Config) -> None:
    """Write the copies of the data set of `train --from` again if the source has changed, or if
    they are missing. `source.content` of the config becomes the hash of what was read.

    Raises:
        FileNotFoundError: If the source has moved.
        ValueError: If its classes have changed, or it cannot be read.
    """
    source = cfg.get("source") or {}
    if not source.get("copies"):
        return
    path = Path(source["path"])
    copies = Path(source["copies"])
    state = read_state(copies)
    is_outdated = not (state and is_current(state, source["path"]))
    if is_outdated and source.get("is_cut"):
        problem = f"{path}, its labels or its tiles have changed since the tiles were cut"
        print(f"{problem}: to cut them again, write another config by --from", file=sys.stderr)
    elif is_outdated:
        dataset = read_data(path, cfg)
        found = dict(classes=dataset.classes, held_out=bool(dataset.held_out))
        classes = configured_classes(cfg, "train")
        is_held_out = cfg["held_out"] != cfg["training"] if "held_out" in cfg else None
        for key, value in dict(classes=classes, held_out=is_held_out).items():
            if value is not None and found[key] != value:
                problem = f"{path} has {key}={found[key]}, and the config was written for {value}"
                raise ValueError(f"{problem}: write another config by --from")
        write_dataset(dataset, path, copies)
        reason = f"{copies} is missing"
        if state:
            is_of_source = state.get("source") == source["path"]
            reason = f"{path} has changed" if is_of_source else f"{copies} is of other data"
        print(f"{reason}; {copies} is written again: {dataset.describe()}", file=sys.stderr)
        state = read_state(copies)
    if state:
        source["content"] = state["content"]
