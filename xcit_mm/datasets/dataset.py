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
    """A data set. Its classes are the categories 1, 2, ... of objects, and images have absolute
    paths as names. `left_out` is the number of objects of no class.
    """

    classes: tuple[str, ...]
    train: CocoFile | Maps
    val: CocoFile | Maps | None = None
    left_out: int = 0

    def describe(self) -> str:
        """Return a line: what is trained on, held out and left out."""
        parts = [counted(len(self.train.images), "photo")]
        if isinstance(self.train, CocoFile):
            labelled = {annotation.image_id for annotation in self.train.annotations}
            parts.append(f"{len(self.train.images) - len(labelled):,} without objects")
            parts.append(counted(len(self.train.annotations), "object"))
        parts.append(counted(len(self.classes), "class"))
        val = f"held out {counted(len(self.val.images), 'photo')}" if self.val else "no --val"
        parts.append(val)
        if self.left_out:
            parts.append(f"left out {counted(self.left_out, 'object')} of no class of the training")
        return ", ".join(parts)


def read_text(path: Path) -> str:
    """Read a text in UTF-8, or raise ValueError with its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
