"""Label files, one for each photo, read into the columns of a split."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from ..utils.texts import compose
from .dataset import Dataset, Image, NewObject, Objects, Split
from .headers import read_infos
from .inventory import Inventory, LeftOut
from .pairs import pair_labelled

Size = tuple[int, int]  # width and height
_VOC_MAPS = ("segmentationclass", "segmentationobject")  # folders of Pascal VOC's maps
_NO = ("", "none", "false", "no", "unspecified")


@dataclass
class PhotoLabels:
    """The content of a label file.

    Attributes:
        objects: Its objects.
        size: Width and height of the photo that the file states, if it does.
        unread: Objects that cannot be read, by reason. Their photo is left out, since they are not
            background.
        without_area: Shapes without an area, by reason.
        photo: Path of the photo that the file states, if it does.
    """

    objects: list[NewObject]
    size: Size | None = None
    unread: Counter[str] = field(default_factory=Counter)
    without_area: Counter[str] = field(default_factory=Counter)
    photo: str | None = None


def read_photo_labels(
    pairs: Mapping[str, Sequence[tuple[Path, Path | None]]],
    read: Callable[[Path, Size], PhotoLabels],
    left_out: LeftOut,
    classes: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], dict[str, Split]]:
    """Return classes, and splits with labels as columns. A photo without a label file has no
    objects.

    Args:
        pairs: The photos of each split with their label files.
        read: Function of a label file and the size of its photo.
        classes: Names of the classes. Default: the labels of all splits, sorted, as one split may
            lack a class.

    Raises:
        ValueError: If a photo or a label file cannot be read.
    """
    sizes = image_sizes(photo for photos in pairs.values() for photo, _ in photos)
    labels: set[str] = set()
    rows: dict[str, list[tuple[Image, Path | None, list[NewObject]]]] = {"train": []}
    for split, photos in pairs.items():
        for photo, path in photos:
            photo_labels = read(path, sizes[photo]) if path else PhotoLabels([])
            _check(photo_labels, photo, path)
            if _leave_out_unread(photo_labels, photo, path, left_out):
                image = Image(photo, *(photo_labels.size or sizes[photo]))
                rows.setdefault(split, []).append((image, path, photo_labels.objects))
                labels.update(labelled.label for labelled in photo_labels.objects)
    names = tuple(sorted(labels) if classes is None else dict.fromkeys(classes))
    return names, {split: to_split(rows_of_split, names) for split, rows_of_split in rows.items()}


def _check(photo_labels: PhotoLabels, photo: Path, path: Path | None) -> None:
    """Raise ValueError if a box is not finite, or a label file names another photo that exists."""
    for new in photo_labels.objects:
        if not all(map(isfinite, new.box)):
            raise ValueError(f"{path} has a value in {new.name} that is not a number")
    name = compose(PureWindowsPath(photo_labels.photo or photo.name).name)
    if name != compose(photo.name) and photo.with_name(name).is_file():
        raise ValueError(
            f"{path} is of {name}, as it says, and has the name of {photo.name}: rename it"
        )


def to_number(value: Any) -> float:
    """Return a number, which may be a text, or else NaN."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return nan


def stated_size(width: Any, height: Any) -> Size | None:
    """Return the size of a photo that a label file states, or None if it does not state both."""
    sides = (to_number(width), to_number(height))
    return (int(sides[0]), int(sides[1])) if all(0 < side < inf for side in sides) else None


def is_set(value: Any) -> bool:
    """Return whether a number or a word, such as 1 and yes, does not mean no."""
    return str(value).strip().lower() not in _NO and to_number(value) != 0


def is_rotation(value: Any) -> bool:
    """Return whether an angle in degrees, which may be a text, turns a box."""
    return to_number(value or 0) % 360 > 0


def box_around(points: np.ndarray) -> list[float]:
    """Return x, y, width and height of the box around points (n, 2)."""
    corner = points.min(axis=0)
    return [*corner.tolist(), *(points.max(axis=0) - corner).tolist()]


def image_sizes(paths: Iterable[Path]) -> dict[Path, Size]:
    """Return width and height of photos as EXIF turns them.

    Raises:
        ValueError: If a file is not an image.
    """
    infos = read_infos([str(path) for path in paths])
    for path, info in infos.items():
        if not info.width:
            raise ValueError(f"{path} cannot be read: {info.problem}")
    return {Path(path): info.shape(is_turned=True)[::-1] for path, info in infos.items()}


def _leave_out_unread(
    photo_labels: PhotoLabels, photo: Path, path: Path | None, left_out: LeftOut
) -> bool:
    """Leave out shapes without an area, and the photo if an object cannot be read. Return whether
    the photo stays.
    """
    for reason, count in photo_labels.without_area.items():
        left_out.add("shape", reason, path, count)
    if not photo_labels.unread:
        return True
    left_out.add_files("photo", f"with {', '.join(photo_labels.unread)}", [photo])
    assert path
    left_out.files.add(path)
    for reason, count in photo_labels.unread.items():
        left_out.add("object", f"that cannot be read: {reason}", path, count)
    if photo_labels.objects:
        left_out.add("object", "beside others that cannot be read", path, len(photo_labels.objects))
    return False


def to_split(
    rows: Sequence[tuple[Image, Path | None, Sequence[NewObject]]], classes: Sequence[str]
) -> Split:
    """Return the columns of images, each with its label file and its objects."""
    numbers = {name: number for number, name in enumerate(classes)}
    labelled = [
        (index, new) for index, (_, _, new_objects) in enumerate(rows) for new in new_objects
    ]
    objects = Objects(
        [index for index, _ in labelled],
        [numbers[new.label] for _, new in labelled],
        [new.box for _, new in labelled],
        [new.mask for _, new in labelled],
        [new.name for _, new in labelled],
        [new.area for _, new in labelled],
    )
    objects.is_crowd[:] = [new.is_crowd for _, new in labelled]
    return Split([image for image, _, _ in rows], [path for _, path, _ in rows], objects)


def read_folder(
    data_format: str,
    labels: Sequence[Path],
    read: Callable[[Path], PhotoLabels],
    inventory: Inventory,
) -> Dataset | None:
    """Read a folder with a file of labels for each photo. Other photos are left out. Return None
    if there are no labels.
    """
    if not labels:
        return None
    left_out = LeftOut(inventory.root)
    maps = [path for path in inventory.photos if path.parent.name.lower() in _VOC_MAPS]
    left_out.add_files("segmentation map", "", maps)
    photos = sorted(set(inventory.photos).difference(maps))
    labelled, lists = pair_labelled(photos, labels, inventory, left_out)
    classes, splits = read_photo_labels(labelled, lambda path, size: read(path), left_out)
    return Dataset(data_format, classes, splits, left_out, inventory, labels[0], lists)
