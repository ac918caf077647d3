"""YOLO's format: folders of images, a text file of labels for each image, and the names of the
classes in data.yaml or classes.txt.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import yaml

from ..utils.coco import from_corners
from ..utils.images import image_size
from .dataset import Dataset, Objects, Photo, Shape, new_dataset
from .files import (
    PHOTO_FOLDERS,
    SPLITS,
    PhotoIndex,
    common_folder,
    divide_photos,
    find_photos,
    list_files,
    pair_splits,
    read_lines,
    split_of,
)


def read_yolo(description: Path) -> Dataset[Objects]:
    """Describe the data set of a data.yaml. A photo without labels has no objects."""
    try:
        entries = yaml.safe_load(description.read_bytes())
        names = entries["names"]
        numbered = names.items() if isinstance(names, dict) else enumerate(names)
        classes = {int(number): str(name) for number, name in sorted(numbered)}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{description} cannot be read ({reason}): expected names") from None
    root = description.parent
    photos = _find_splits(description, entries)
    if not photos:  # as supervision exports
        photos = divide_photos(find_photos(root), root, "Main")
    if "train" not in photos:
        raise ValueError(f"{description} has no training images: expected 'train'")
    paths = [path for split in photos.values() for path in split]
    if all(root in path.parents for path in paths):
        photos[""] = sorted(set(find_photos(root)).difference(paths))
    else:  # the photos lie elsewhere, beside other data sets
        root = common_folder(paths)
        while root.name.lower() in PHOTO_FOLDERS or split_of(Path(root.name)):
            root = root.parent
    return _describe(root, photos, classes)


def read_yolo_folder(data: Path, names: Path) -> Dataset[Objects]:
    """Describe a folder of photos and labels, and a file with the names of the classes."""
    photos = divide_photos(find_photos(data), data, "Main")
    return _describe(data, photos, dict(enumerate(read_lines(names))))


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
    """Find the photos of a folder or of a list. Its path may be that of another machine, or, as
    Roboflow exports, of a folder beside.
    """
    parts = PureWindowsPath(place).parts
    for root in roots:
        tails = [root.joinpath(*parts[start:]) for start in range(len(parts))]
        for path in [root / place, *tails]:
            if path.is_file() and path.suffix == ".txt":
                index = PhotoIndex(path.parent)
                listed = [(name, index.find(name)) for name in read_lines(path)]
                missing = [name for name, photo in listed if photo is None]
                if missing:
                    raise FileNotFoundError(f"{path} lists {missing[0]}, which is not found")
                return [photo for _, photo in listed if photo]
            photos = find_photos(path)
            if photos:
                return photos
    raise FileNotFoundError(f"{description}: {place} must be a folder or a list of images")


def _describe(
    root: Path, photos: Mapping[str, Sequence[Path]], classes: Mapping[int, str]
) -> Dataset[Objects]:
    """Describe the photos of each split with the labels below `root`."""
    pairs, left_out = pair_splits(photos, list_files(root, ".txt"), root)
    splits = {split: Objects([]) for split in pairs}
    for split, labelled in pairs.items():
        for photo, label in labelled:
            size = image_size(photo)
            shapes = list(_read_labels(label, size, classes)) if label else []
            splits[split].photos.append(Photo(photo, size, shapes))
    return new_dataset(tuple(dict.fromkeys(classes.values())), splits, left_out)


def _read_labels(file: Path, size: tuple[int, int], classes: Mapping[int, str]) -> Iterator[Shape]:
    """Read lines of a class with a box (centre and sides) or a polygon, in parts of the photo's
    width and height. A last value that has no partner is a score.
    """
    for number, line in enumerate(read_lines(file), start=1):
        try:
            numbers = list(map(float, line.split()))
        except ValueError:
            numbers = [np.nan]
        if len(numbers) < 5 or numbers[0] not in classes:
            expected = f"a class of {min(classes)} to {max(classes)} with a box or a polygon"
            raise ValueError(f"{file} has {line!r} in line {number}: expected {expected}")
        label = classes[int(numbers.pop(0))]
        if len(numbers) % 2:
            numbers.pop()
        points = np.reshape(numbers, (-1, 2)) * size
        if len(points) == 2:
            centre, sides = points
            yield Shape(label, [*(centre - sides / 2), *sides])
        else:
            corners = [*points.min(axis=0), *points.max(axis=0)]
            yield Shape(label, from_corners(corners)[0], [points.ravel().tolist()])
