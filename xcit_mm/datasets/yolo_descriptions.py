"""What describes a data set of YOLO: data.yaml."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import yaml

from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import class_name, read_text
from ..utils.walk import iter_files
from .inventory import LeftOut
from .old_dataset import check_repeated
from .pairs import SPLITS


@dataclass
class Description:
    """What a description says about a data set.

    Attributes:
        classes: Names of the classes by number.
        keypoint_values: Number of values of a line's keypoints.
        entries: All that it says, as it was written.
    """

    classes: dict[int, str]
    keypoint_values: int
    entries: dict[str, Any]


class _Loader(yaml.BaseLoader):
    """Reads all values as they were written, and refuses keys that are written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the entries of a mapping. yaml itself drops repeated keys."""
        entries = super().construct_mapping(node, deep)
        if len(entries) < len(node.value):
            keys = [key.value for key, _ in node.value]
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {repeated} is written twice")
        return entries


def has_names(path: Path) -> bool:
    """Return whether a yaml has names of classes, or is data.yaml. Other tools have other yamls."""
    is_named_so = path.stem.lower() == "data"
    try:
        entries = _read_entries(path)
    except (yaml.YAMLError, ValueError):
        return is_named_so
    return is_named_so or bool(_entry(entries, "names"))


def read_description(path: Path) -> Description:
    """Read a description.

    Raises:
        ValueError: If it cannot be read, or names no classes.
    """
    try:
        entries = _read_entries(path)
        names = _entry(entries, "names")
        if not names:
            raise ValueError("it has no names")
        if isinstance(names, str):
            raise ValueError(f"its names are the text {names!r}, not a list")
        numbered = list(names.items() if isinstance(names, dict) else enumerate(names))
        classes = {int(number): class_name(name) for number, name in numbered}
        if len(classes) < len(numbered):
            raise ValueError("two names have one number")
        count = int(_entry(entries, "nc") or len(classes))
        if count != len(classes):
            raise ValueError(f"nc is {count}, and there are {len(classes)} names")
        keypoint_values = prod(map(int, _entry(entries, "kpt_shape") or [0]))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason}): expected names: [...]") from None
    check_repeated(list(classes.values()), path)
    return Description(dict(sorted(classes.items())), keypoint_values, entries)


def _read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a description by keys of small letters, all values as they were
    written.
    """
    entries = yaml.load(read_text(path), _Loader)
    is_mapping = isinstance(entries, dict)
    return {key.lower(): value for key, value in entries.items()} if is_mapping else {}


def _entry(entries: Mapping[str, Any], key: str) -> Any:
    """Return an entry, or nothing if it is null."""
    value = entries.get(key) or ""
    return "" if value in ("~", "null", "Null", "NULL") else value


def find_sources(
    path: Path, entries: Mapping[str, Any], left_out: LeftOut
) -> dict[str, list[Path]]:
    """Return the folders and lists of photos of each split. Roboflow names a folder for tests, even
    if there is none: it is left out beside validation.

    Raises:
        FileNotFoundError: If a folder or list does not exist, or a folder has no photos.
    """
    base = PureWindowsPath(_entry(entries, "path")).as_posix()
    roots = [path.parent / base, path.parent]
    sources: dict[str, list[Path]] = {}
    for key, split in SPLITS.items():
        written = _entry(entries, key) or []
        for name in [written] if isinstance(written, str) else written:
            try:
                sources.setdefault(split, []).append(_find_source(path, name, roots))
            except FileNotFoundError:
                if split != "test" or "val" not in sources:
                    raise
                left_out.add("folder", "of test that is missing", name)
    return {split: paths for split, paths in sources.items() if paths}


def _find_source(path: Path, name: str, roots: Sequence[Path]) -> Path:
    """Return the folder or the list of photos that a description names."""
    for source in _possible_paths(name, roots):
        is_list = source.suffix == ".txt" and source.is_file()
        if is_list or any(file.suffix.lower() in PHOTO_SUFFIXES for file in iter_files(source)):
            return source
    raise FileNotFoundError(f"{path}: {name} must be a folder or a list of images")


def _possible_paths(written: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Iterate over a path below each root, and its ends: it may be that of another machine, or, as
    Roboflow writes it, begin with ../ though the folder is in the root.
    """
    path = PurePath(PureWindowsPath(written).as_posix())
    for root in roots:
        yield Path(os.path.normpath(root / path))  # without ../: paths are compared by parts
        for start in range(1, len(path.parts)):
            yield root.joinpath(*path.parts[start:])
