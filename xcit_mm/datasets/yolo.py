"""YOLO's format: folders of images, a text file of labels for each image, and a description that
names the classes: data.yaml, Darknet's obj.data, or a list of names such as classes.txt.
"""

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath, PureWindowsPath

import numpy as np
import yaml

from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import class_name, read_lines, read_text
from ..utils.walk import iter_files
from .dataset import Candidate, Dataset, NewObject
from .inventory import Inventory, LeftOut
from .label_files import LabelFile, Size, box_around, read_label_files
from .pairs import PHOTO_FOLDERS, SPLITS, divide_photos, pair_labels, split_of


@dataclass
class Description:
    """What a description says about a data set.

    Attributes:
        files: The file, and those that it names.
        classes: Names of the classes by number.
        splits: Folders and lists of photos of each split, as written. Empty if it names none.
        base: Folder to which they are relative, as written.
        keypoints: Number of values of a line's keypoints.
    """

    files: list[Path]
    classes: dict[int, str]
    splits: dict[str, list[str]]
    base: str = ""
    keypoints: int = 0


def propose(inventory: Inventory) -> Candidate | None:
    """Return this format if a folder has a description: a yaml with names, or else a .data, or else
    a list of names.

    Raises:
        ValueError: If several files describe it, and they are not lists of the same names.
    """
    yamls = [
        path
        for path in inventory.describing(".yaml", ".yml")
        if path.stem == "data" or b"names" in path.read_bytes()
    ]
    lists = [path for path in inventory.describing(".txt", ".names") if _is_list_of_names(path)]
    descriptions = yamls or inventory.describing(".data") or lists
    if not descriptions:
        return None
    first, *others = descriptions
    for other in others:
        if first not in lists or read_lines(first) != read_lines(other):
            raise ValueError(f"{inventory.given} is described by {first} and {other}: remove one")
    return Candidate("YOLO", first, partial(read_yolo, first, inventory))


def _is_list_of_names(path: Path) -> bool:
    return path.suffix == ".names" or path.name == "classes.txt"


def read_description(path: Path) -> Description:
    """Read a description.

    Raises:
        ValueError: If it cannot be read, or names no classes.
        FileNotFoundError: If it names a file that does not exist.
    """
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path)
    if path.suffix == ".data":
        return _read_darknet(path)
    return Description(
        [path], dict(enumerate(map(class_name, read_lines(path)))), _find_lists(path)
    )


def _read_yaml(path: Path) -> Description:
    try:
        entries = yaml.load(read_text(path), yaml.BaseLoader)  # every value as it was written
        if not isinstance(entries, dict):
            raise ValueError(f"it holds {entries!r}")
        if not entries.get("names"):
            raise ValueError("it has no names")
        files = [path]
        names = entries["names"]
        if isinstance(names, str):
            names, named_file = _names_of_text(path, names)
            files += named_file
        numbered = names.items() if isinstance(names, dict) else enumerate(names)
        classes = {int(number): class_name(name) for number, name in numbered}
        count = int(entries.get("nc") or len(classes))
        if count != len(classes):
            raise ValueError(f"nc is {count}, and there are {len(classes)} names")
        keypoints = int(np.prod([int(side) for side in entries.get("kpt_shape") or [0]]))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason}): expected names: [...]") from None
    splits: dict[str, list[str]] = {}
    for key, split in SPLITS.items():
        paths = entries.get(key) or []
        splits.setdefault(split, []).extend([paths] if isinstance(paths, str) else paths)
    splits = {split: paths for split, paths in splits.items() if paths}
    return Description(
        files, dict(sorted(classes.items())), splits, entries.get("path") or "", keypoints
    )


def _names_of_text(path: Path, names: str) -> tuple[list[str], list[Path]]:
    """Return the names of `names: TEXT`, which is a file or a single class, and the file."""
    file = path.parent / PureWindowsPath(names).as_posix()
    if file.is_file():
        return read_lines(file), [file]
    if PurePath(names).suffix in (".names", ".txt", ".yaml"):
        raise ValueError(f"the file {names} does not exist")
    return [names], []


def _read_darknet(path: Path) -> Description:
    """Read lines of KEY = VALUE."""
    pairs = [line.partition("=") for line in read_lines(path)]
    entries = {key.strip(): value.strip() for key, _, value in pairs}
    names = entries.get("names", "")
    file = _find_file(path.parent, names) if names else None
    if file is None:
        raise ValueError(f"{path} cannot be read: the file names = {names} does not exist")
    splits: dict[str, list[str]] = {}
    for key, split in SPLITS.items():
        if _find_file(path.parent, entries.get(key, "")):
            splits.setdefault(split, []).append(entries[key])
    return Description([path, file], dict(enumerate(map(class_name, read_lines(file)))), splits)


def _find_lists(names: Path) -> dict[str, list[str]]:
    """Find the lists of photos of splits beside a list of names."""
    splits: dict[str, list[str]] = {}
    for stem, split in SPLITS.items():
        path = names.with_name(f"{stem}.txt")
        if path.is_file() and _lists_photos(path):
            splits.setdefault(split, []).append(path.name)
    return splits


def _lists_photos(path: Path) -> bool:
    lines = read_lines(path)
    return bool(lines) and all(line.lower().endswith(PHOTO_SUFFIXES) for line in lines)


def _find_file(folder: Path, written: str) -> Path | None:
    paths = _possible_paths(written, [folder]) if written else iter(())
    return next((path for path in paths if path.is_file()), None)


def _possible_paths(written: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Iterate over a path below each root, and its ends: it may be that of another machine, or, as
    Roboflow writes it, begin with ../ though the folder is in the root.
    """
    parts = PureWindowsPath(written).parts
    for root in roots:
        yield Path(os.path.normpath(root.joinpath(*parts)))  # labels are sought where ../ leads to
        for start in range(1, len(parts)):
            yield root.joinpath(*parts[start:])


def read_yolo(path: Path, inventory: Inventory) -> Dataset:
    """Read the data set of a description. A photo without a label file has no objects.

    Raises:
        ValueError: If a file cannot be read, or there are no photos for training.
        FileNotFoundError: If a folder, list or photo that it names does not exist.
    """
    description = read_description(path)
    left_out = LeftOut(inventory.root)
    sources = _find_sources(path, description)
    inventory = _with_folders_elsewhere(inventory, sources)
    photos = {split: _photos_of(paths, inventory) for split, paths in sources.items()}
    if not photos:  # supervision names no splits
        photos = divide_photos(inventory.photos, inventory)
    if "train" not in photos:
        raise ValueError(f"{path} has no training images: expected 'train'")
    listed = {photo for paths in photos.values() for photo in paths}
    unlisted = [path for path in inventory.without(listed) if path.suffix.lower() in PHOTO_SUFFIXES]
    photos.setdefault("", []).extend(unlisted)
    lists = [source for paths in sources.values() for source in paths if source.is_file()]
    used = [*description.files, *lists]
    texts = [text for text in inventory.with_suffix(".txt") if text not in used]
    pairs = pair_labels(photos, texts, inventory, left_out)
    reader = _LineReader(description, left_out)
    names = list(description.classes.values())
    classes, splits = read_label_files(pairs, reader.read, left_out, names)
    reader.check_for_keypoints(path)
    return Dataset("YOLO", classes, splits, left_out, inventory, used)


def _find_sources(path: Path, description: Description) -> dict[str, list[Path]]:
    """Return the folders and lists of photos of each split.

    Raises:
        FileNotFoundError: If one does not exist, or a folder has no photos.
    """
    roots = [path.parent / PureWindowsPath(description.base).as_posix(), path.parent]
    sources: dict[str, list[Path]] = {}
    for split, names in description.splits.items():
        for name in names:
            sources.setdefault(split, []).append(_find_source(path, name, roots))
    return sources


def _find_source(path: Path, name: str, roots: Sequence[Path]) -> Path:
    for candidate in _possible_paths(name, roots):
        is_list = candidate.suffix == ".txt" and candidate.is_file()
        if is_list or any(file.suffix.lower() in PHOTO_SUFFIXES for file in iter_files(candidate)):
            return candidate
    raise FileNotFoundError(f"{path}: {name} must be a folder or a list of images")


def _with_folders_elsewhere(
    inventory: Inventory, sources: Mapping[str, Sequence[Path]]
) -> Inventory:
    """Return an inventory that also has the folders of photos, and their labels, elsewhere."""
    roots = [inventory.root]
    for source in (source for paths in sources.values() for source in paths):
        folder = source.parent if source.is_file() else source
        while folder.name.lower() in PHOTO_FOLDERS or split_of(PurePath(folder.name)):
            folder = folder.parent
        if not any(folder.is_relative_to(root) for root in roots):
            roots = [root for root in roots if not root.is_relative_to(folder)] + [folder]
    return inventory if roots == [inventory.root] else Inventory(inventory.given, *roots)


def _photos_of(sources: Sequence[Path], inventory: Inventory) -> list[Path]:
    photos: list[Path] = []
    for source in sources:
        photos += inventory.photos_in(source) if source.is_dir() else _read_list(source, inventory)
    return list(dict.fromkeys(photos))


def _read_list(path: Path, inventory: Inventory) -> list[Path]:
    photos = []
    for name in read_lines(path):
        photo = inventory.find_photo(name)
        if photo is None:
            raise FileNotFoundError(f"{path} lists {name}, which is not found")
        photos.append(photo)
    return photos


class _LineReader:
    """Reads label files, whose lines hold a class with a box (centre and sides) or a polygon, in
    parts of the photo's width and height. A last value without a partner is a score.
    """

    def __init__(self, description: Description, left_out: LeftOut) -> None:
        self._classes = description.classes
        self._keypoints = description.keypoints
        self._left_out = left_out
        self._polygons = 0
        self._like_keypoints = 0

    def read(self, path: Path, size: Size) -> LabelFile:
        """Read the objects of a photo of this width and height."""
        objects = []
        for number, line in enumerate(read_lines(path), start=1):
            label, coordinates = self._read_line(path, number, line)
            points = np.reshape(coordinates, (-1, 2)) * size
            name = f"line {number}"
            if len(points) == 2:
                centre, sides = points
                objects.append(NewObject(label, [*(centre - sides / 2), *sides], None, name))
            else:
                outline = array("d", points.ravel())
                objects.append(NewObject(label, box_around(points), [outline], name))
        return LabelFile(objects)

    def _read_line(self, path: Path, number: int, line: str) -> tuple[str, list[float]]:
        """Return the class and the coordinates of a line."""
        try:
            class_number, *coordinates = map(float, line.split())
        except ValueError:
            class_number = np.nan
            coordinates = []
        is_known = class_number in self._classes
        if len(coordinates) < 4 or not is_known or not np.isfinite(coordinates).all():
            classes = f"{min(self._classes)} to {max(self._classes)}"
            expected = f"a class of {classes} with a box or a polygon"
            raise ValueError(f"{path} has {line!r} in line {number}: expected {expected}")
        if self._keypoints:
            if len(coordinates) != 4 + self._keypoints:
                expected = f"a box and {self._keypoints} values, as kpt_shape says"
                raise ValueError(f"{path} has {line!r} in line {number}: expected {expected}")
            self._left_out.add("set", "of keypoints", path)
            coordinates = coordinates[:4]
        elif len(coordinates) > 5:
            self._polygons += 1
            self._like_keypoints += _are_keypoints(coordinates)
        if len(coordinates) % 2:
            coordinates.pop()
        return self._classes[int(class_number)], coordinates

    def check_for_keypoints(self, path: Path) -> None:
        """Raise ValueError if all polygons look like boxes with keypoints."""
        if self._polygons and self._like_keypoints == self._polygons:
            fix = "write kpt_shape into data.yaml, and boxes alone are read"
            raise ValueError(f"{path}: lines of the labels look like boxes with keypoints: {fix}")


def _are_keypoints(coordinates: Sequence[float]) -> bool:
    """Return whether triples of x, y and a visibility of 0, 1 or 2 may follow a box."""
    visibilities = coordinates[6::3]
    return (len(coordinates) - 4) % 3 == 0 and set(visibilities) <= {0, 1, 2}
