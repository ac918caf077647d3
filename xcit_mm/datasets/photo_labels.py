"""Values of label files, sizes of photos, and objects of photos as columns."""

from collections.abc import Iterable, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

from .old_dataset import Image, NewObject, Objects, Split
from .old_headers import read_infos

Size = tuple[int, int]  # width and height
_NO = ("", "none", "false", "no")


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
