"""A data set as it is trained on: its classes, and of each split the images with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..utils.errors import counted
from .coco import Annotation, CocoImage

IGNORED = 255
"""The label of pixels in segmentation maps that neither train nor score."""


@dataclass
class Objects:
    """A split whose images have objects.

    Attributes:
        images: With absolute paths as `file_name`, and ids of any kind.
        annotations: With the `id` of their image, and 1, 2, ... for the classes of the data set as
            `category_id`.
    """

    images: list[CocoImage]
    annotations: list[Annotation]

    @property
    def photo_count(self) -> int:
        return len(self.images)

    def count_empty(self) -> int:
        """Return the number of images without objects."""
        return len(self.images) - len({annotation.image_id for annotation in self.annotations})

    def describe(self, classes: Sequence[str]) -> str:
        """Return the numbers of photos, objects and classes."""
        empty = self.count_empty()
        without = f", {empty:,} without objects" if empty else ""
        objects = counted(len(self.annotations), "object")
        photos = counted(self.photo_count, "photo")
        return f"{photos}{without}, {objects} of {counted(len(classes), 'class')}"


@dataclass
class Maps:
    """A split whose images have segmentation maps, PNGs with the names of the images.

    Attributes:
        photos: Folder of the images.
        maps: Folder of the maps.
        suffix: That of all images, such as '.jpg'.
        photo_count: Number of images.
    """

    photos: Path
    maps: Path
    suffix: str
    photo_count: int

    def describe(self, classes: Sequence[str]) -> str:
        """Return the numbers of photos and classes."""
        photos = counted(self.photo_count, "photo")
        return f"{photos} with maps of {counted(len(classes), 'class')}"


@dataclass
class Dataset:
    """A data set.

    Attributes:
        classes: Names of the labels 0, 1, ... of a model.
        train: What is trained on.
        val: What is held out, or None.
        notes: What of the user's files is not used, such as '3 objects of no class (crate)'.
    """

    classes: tuple[str, ...]
    train: Objects | Maps
    val: Objects | Maps | None = None
    notes: Sequence[str] = ()

    def describe(self) -> str:
        """Return what is trained on, held out and not used."""
        held_out = f"held out {counted(self.val.photo_count, 'photo')}" if self.val else ""
        parts = [self.train.describe(self.classes), held_out or "no validation", *self.notes]
        return "; ".join(parts)
