"""YOLO's format: folders of images, a text file of labels for each image, and the names of the
classes in data.yaml or classes.txt.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import yaml

from ..utils.images import image_size
from .dataset import Dataset, Objects, Photo, Shape, box_around, new_dataset
from .files import (
    PHOTO_FOLDERS,
    SPLITS,
    PhotoIndex,
    divide_photos,
    find_photos,
    list_files,
    pair_splits,
    read_lines,
    split_of,
)


def read_yolo(description: Path) -> Dataset[Objects]:
    """Describe the data set of a data.yaml. A photo without labels has no objects."""
    entries, classes = _read_description(description)
    root = description.parent
    splits = _find_splits(description, entries)
    if not splits:  # supervision names none
        splits = divide_photos(find_photos(root), root)
    if "train" not in splits:
        raise ValueError(f"{description} has no training images: expected 'train'")
    photos = [photo for photos_of_split in splits.values() for photo in photos_of_split]
    if all(root in photo.parents for photo in photos):
        splits[""] = sorted(set(find_photos(root)).difference(photos))
    else:  # the photos may lie beside other data sets
        root = _folder_above_images(photos)
    return _describe(root, splits, classes)


def read_yolo_folder(data: Path, names: Path) -> Dataset[Objects]:
    """Describe a folder of photos and labels, and a file with the names of the classes."""
    classes = dict(enumerate(read_lines(names)))
    return _describe(data, divide_photos(find_photos(data), data), classes)


def _read_description(path: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the entries of a data.yaml, and the names of its classes by number."""
    try:
        entries = yaml.safe_load(path.read_bytes())
        names = entries["names"]
        numbered = names.items() if isinstance(names, dict) else enumerate(names)
        classes = {int(number): str(name) for number, name in sorted(numbered)}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason}): expected names") from None
    return entries, classes


def _find_splits(description: Path, entries: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Find the photos of the splits that a data.yaml names."""
    roots = [description.parent / str(entries.get("path") or ""), description.parent]
    photos: dict[str, list[Path]] = {}
    for key, split in SPLITS.items():
        places = entries.get(key) or []
        for place in [places] if isinstance(places, str) else places:
            photos.setdefault(split, []).extend(_find_place(description, str(place), roots))
    return photos


def _find_place(description: Path, place: str, roots: Sequence[Path]) -> list[Path]:
    """Find the photos of a folder or of a list of photos."""
    for path in _possible_paths(place, roots):
        if path.is_file() and path.suffix == ".txt":
            return _read_list(path)
        photos = find_photos(path)
        if photos:
            return photos
    raise FileNotFoundError(f"{description}: {place} must be a folder or a list of images")


def _possible_paths(place: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Iterate over a path below each root, and its ends: it may be that of another machine, or, as
    Roboflow writes it, begin with ../ though the folder is in the root.
    """
    parts = PureWindowsPath(place).parts
    for root in roots:
        yield Path(os.path.normpath(root / place))  # labels are sought where ../ leads to
        for start in range(len(parts)):
            yield root.joinpath(*parts[start:])


def _read_list(path: Path) -> list[Path]:
    """Read a list of photos, which are sought below its folder."""
    index = PhotoIndex(path.parent)
    photos = []
    for name in read_lines(path):
        photo = index.find(name)
        if photo is None:
            raise FileNotFoundError(f"{path} lists {name}, which is not found")
        photos.append(photo)
    return photos


def _folder_above_images(photos: Sequence[Path]) -> Path:
    """Return the folder of photos and labels, such as data for data/images/train."""
    folder = Path(os.path.commonpath([photo.parent for photo in photos]))
    while folder.name.lower() in PHOTO_FOLDERS or split_of(Path(folder.name)):
        folder = folder.parent
    return folder


def _describe(
    root: Path, photos: Mapping[str, Sequence[Path]], classes: Mapping[int, str]
) -> Dataset[Objects]:
    """Describe the photos of each split with the labels below `root`."""
    left_out: Counter[str] = Counter()
    pairs = pair_splits(photos, list_files(root, ".txt"), root, left_out)
    splits = {split: Objects([]) for split in pairs}
    for split, photos_with_labels in pairs.items():
        for photo, label in photos_with_labels:
            size = image_size(photo)
            shapes = list(_read_labels(label, size, classes)) if label else []
            splits[split].photos.append(Photo(photo, size, shapes))
    return new_dataset(list(dict.fromkeys(classes.values())), splits, left_out)


def _read_labels(file: Path, size: tuple[int, int], classes: Mapping[int, str]) -> Iterator[Shape]:
    """Read lines of a class with a box (centre and sides) or a polygon, in parts of the photo's
    width and height. A last value without a partner is a score.
    """
    for number, line in enumerate(read_lines(file), start=1):
        try:
            class_number, *coordinates = map(float, line.split())
        except ValueError:
            class_number = np.nan
            coordinates = []
        if len(coordinates) < 4 or class_number not in classes:
            expected = f"a class of {min(classes)} to {max(classes)} with a box or a polygon"
            raise ValueError(f"{file} has {line!r} in line {number}: expected {expected}")
        label = classes[int(class_number)]
        if len(coordinates) % 2:
            coordinates.pop()
        points = np.reshape(coordinates, (-1, 2)) * size
        if len(points) == 2:
            centre, sides = points
            yield Shape(label, [*(centre - sides / 2), *sides])
        else:
            yield Shape(label, box_around(points), [points.ravel().tolist()])
