"""A data set as it is trained on: its classes, and of each split the images with their labels."""

from dataclasses import dataclass, field
from pathlib import Path

from ..utils.errors import counted, preview
from .coco import CocoFile

PAGE = "docs/your-own-data.md"
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
    paths as names. `left_out` has the category of each object of no class.
    """

    classes: tuple[str, ...]
    train: CocoFile | Maps
    val: CocoFile | Maps | None = None
    left_out: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Return a line: what is trained on, held out and left out."""
        parts = [counted(len(self.train.images), "photo")]
        if isinstance(self.train, CocoFile):
            labelled = {annotation.image_id for annotation in self.train.annotations}
            parts.append(f"{len(self.train.images) - len(labelled):,} without objects")
            parts.append(counted(len(self.train.annotations), "object"))
        parts.append(counted(len(self.classes), "class"))
        if self.val:
            parts.append(f"held out {counted(len(self.val.images), 'photo')}")
        else:
            parts.append("no validation: no --val, `val` in data.yaml or images/val")
        if self.left_out:
            problem = f"left out {counted(len(self.left_out), 'object')} of the validation"
            names = preview(sorted(set(self.left_out)))
            parts.append(f"{problem}, of classes without objects in training: {names}")
        return ", ".join(parts)


def read_text(path: Path) -> str:
    """Read a text in UTF-8, or raise ValueError with its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
