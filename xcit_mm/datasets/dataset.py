"""A data set as it is trained on: its classes, and of each split the images with their labels."""

from dataclasses import dataclass
from pathlib import Path

from ..utils.errors import counted
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


def read_text(path: Path) -> str:
    """Read a text in UTF-8, or raise ValueError with its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
