"""A data set as it is trained on: its classes, and of each split the images with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..utils.errors import counted, preview
from .coco import CocoFile

IGNORED = 255
"""The label of pixels in segmentation maps that neither train nor score."""


@dataclass
class Maps:
    """A split whose images have segmentation maps, PNGs of the same names in another folder.

    `images` are their names without `suffix`, such as '.jpg'.
    """

    image_folder: Path
    map_folder: Path
    suffix: str
    images: list[str]


@dataclass
class Dataset:
    """A data set. Objects have 1, 2, ... for its classes as category ids, and absolute paths as
    names of images.

    Attributes:
        note: How many objects are left out, or ''.
    """

    classes: tuple[str, ...]
    train: CocoFile | Maps
    val: CocoFile | Maps | None = None
    note: str = ""

    def describe(self) -> str:
        """Return a line: what is trained on, held out and left out."""
        line = counted(len(self.train.images), "photo")
        if isinstance(self.train, CocoFile):
            annotations = self.train.annotations
            empty = len(self.train.images) - len({part.image_id for part in annotations})
            line += f", {empty:,} without objects, {counted(len(annotations), 'object')}"
        line += f", {counted(len(self.classes), 'class')}"
        line += f"; held out {counted(len(self.val.images), 'photo')}" if self.val else "; no --val"
        return line + self.note


def make_dataset(
    path: Path, train: CocoFile, val: CocoFile | None, order: Sequence[str]
) -> Dataset:
    """Return the objects of a user's files. Classes are the categories of objects in `train`.

    Arguments and errors are those of `read_dataset`; `path` is the first file.
    """
    used = {annotation.category_id for annotation in train.annotations}
    classes = [category.name for category in train.categories if category.id in used]
    if not classes:
        raise ValueError(f"{path}: no image for training has an object")
    if set(classes) == set(order):
        classes = list(order)
    _number_classes(train, classes)
    note = ""
    if val is not None:
        lacking = set(classes).difference(category.name for category in val.categories)
        if lacking:
            raise ValueError(f"{path}: --val has no category {preview(sorted(lacking))}")
        left_out = _number_classes(val, classes)
        if left_out:
            note = f"; left out {counted(left_out, 'object')} of no class of the training"
    return Dataset(tuple(classes), train, val, note)


def _number_classes(content: CocoFile, classes: Sequence[str]) -> int:
    """Give objects the numbers of classes. Remove those of other categories, and return how many
    they are.
    """
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    new_ids = {part.id: numbers[part.name] for part in content.categories if part.name in numbers}
    kept = [part for part in content.annotations if part.category_id in new_ids]
    left_out = len(content.annotations) - len(kept)
    for annotation in kept:
        annotation.category_id = new_ids[annotation.category_id]
    content.annotations = kept
    return left_out


def read_text(path: Path) -> str:
    """Read a text in UTF-8, or raise ValueError with its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
