"""YOLO's format: data.yaml, folders of images, and a text file of labels for each image."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import yaml

from ..utils.coco import from_corners
from ..utils.images import image_size
from .dataset import Dataset, Objects, Shape, describe_photos
from .files import SPLITS, find_photos, pair_labels


def read_yolo(description: Path) -> Dataset[Objects]:
    """Describe the data set of a data.yaml. A photo without labels has no objects.

    Raises:
        FileNotFoundError: If a split is not a folder of images.
        ValueError: If a file cannot be read, or there are no training images.
    """
    try:
        content = yaml.safe_load(description.read_bytes())
        names = content["names"]
        numbers = sorted(names) if isinstance(names, dict) else range(len(names))
        classes = tuple(str(names[number]) for number in numbers)
    except (yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{description} cannot be read ({reason}): expected names") from None
    splits = {}
    for split, keys in SPLITS.items():
        places = [str(content[key]) for key in keys if content.get(key)]
        if places:
            folder, root = _find_folder(description, str(content.get("path") or ""), places[0])
            pairs = pair_labels(find_photos(folder), root.rglob("*.txt"), root)
            photos = [
                (photo, list(_read_labels(labels, photo, classes)) if labels else [])
                for photo, labels in pairs
            ]
            splits[split] = describe_photos(photos, classes)
    if "train" not in splits:
        raise ValueError(f"{description} has no training images: expected 'train'")
    return Dataset(classes, splits)


def _find_folder(description: Path, path: str, place: str) -> tuple[Path, Path]:
    """Find the folder of a split, relative to `path` or, as Roboflow exports, to the file.

    Returns:
        The folder, and the folder to which it is relative.
    """
    for name in (place, place.removeprefix("../")):
        for root in (description.parent / path, description.parent):
            if find_photos(root / name):
                return root / name, root
    raise FileNotFoundError(f"{description}: {place} must be a folder of images")


def _read_labels(file: Path, photo: Path, classes: Sequence[str]) -> Iterator[Shape]:
    """Read lines of a class with a box (centre and sides) or a polygon, in parts of the photo's
    sides. A last value that has no partner is a score.
    """
    size = image_size(photo)
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
        try:
            values = list(map(float, line.split()))
        except ValueError:
            values = [np.nan]
        if not values:
            continue
        if len(values) < 5 or values[0] not in range(len(classes)):
            expected = f"a class of 0 to {len(classes) - 1} with a box or a polygon"
            raise ValueError(f"{file} has {line!r} in line {number}: expected {expected}")
        label = classes[int(values.pop(0))]
        if len(values) % 2:
            values.pop()
        points = np.reshape(values, (-1, 2)) * size
        if len(points) == 2:
            centre, sides = points
            yield Shape(label, [*(centre - sides / 2), *sides])
        else:
            corners = [*points.min(axis=0), *points.max(axis=0)]
            yield Shape(label, from_corners(corners)[0], [points.ravel().tolist()])
