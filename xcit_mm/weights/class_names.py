"""The names of the classes in a checkpoint and in a config, and whether they are the same."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from mmengine.config import Config

from ..utils.config_data import data_sets, metainfo
from .reader import meta_of

KEEP_HINT = "to fine-tune: strict_heads=False in StrictLoadHook, or in init_cfg of a classifier"


def learned_classes(checkpoint: Any) -> tuple[str, ...] | None:
    """Return the names of the classes that the content of a file was trained on, or None.

    A file that has only weights does not name its classes.
    """
    meta = meta_of(checkpoint)
    dataset_meta = meta.get("dataset_meta") or {}
    return as_names(dataset_meta.get("classes") or meta.get("CLASSES"))  # the latter by mmcv 1


def configured_classes(cfg: Config, split: str = "test") -> tuple[str, ...] | None:
    """Return the names of the classes that a split of mmdet or mmseg has, or None."""
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):  # mmpretrain takes them from folders
        return None
    for dataset in data_sets(cfg, split):
        # The library registers its data sets in its own scope.
        names = as_names(metainfo(dict(_scope_=cfg.default_scope) | dataset).get("classes"))
        if names:
            return names
    return None


def as_names(names: Any) -> tuple[str, ...] | None:
    """Return a list of names as a tuple, or None if it is not a list."""
    return tuple(map(str, names)) if isinstance(names, list | tuple) else None


def check_same_classes(
    checkpoint: Any, learned: Sequence[str] | None, classes: Sequence[str] | None
) -> None:
    """Raise ValueError if a checkpoint has learned other classes than a config has.

    The same classes in another order are an error too. Unknown classes, None, are accepted.
    """
    if learned is None or classes is None:
        return
    for number, (name, other) in enumerate(zip_longest(learned, classes)):
        if name != other:
            problem = f"{checkpoint} has learned other classes than the config, or another order"
            place = f"class {number} is {name}, not {other}"
            fix = "take the config that it was trained with, or a checkpoint of this config"
            raise ValueError(f"{problem}: {place}; {fix}; {KEEP_HINT}")
