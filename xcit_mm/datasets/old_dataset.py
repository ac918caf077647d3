"""Images with labels: classes, and of each split the images with objects or segmentation maps.

A reader for each format makes a `Dataset`, cutting of rasters makes one, checks read its columns,
and it is written once for mmdet or mmseg.
"""

import copy
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..utils.coco import polygon_area
from ..utils.errors import counted
from .inventory import Inventory, LeftOut

IGNORED = 255
"""The label of pixels in segmentation maps that neither train nor score."""
LAYOUTS = (
    "docs/your-own-data.md shows the layouts that are read, docs/recipes.md how to convert others"
)


class Image(NamedTuple):
    """An image of a data set. Width and height are those that its label file states, or else those
    of the file as EXIF turns it.
    """

    path: Path
    width: int
    height: int


Mask = list[array] | Mapping[str, Any] | None
"""The outlines of an object's parts, each x, y, x, y, ... in pixels; an RLE as in COCO jsons; or
None.
"""


class NewObject(NamedTuple):
    """An object in an image: a row of `Objects`. Its label is the name of its class, its name its
    line or number in the label file.
    """

    label: str
    box: Sequence[float]
    mask: Mask = None
    name: str = ""
    is_crowd: bool = False
    area: float | None = None


class Objects:
    """Objects as columns of n rows.

    Attributes:
        images: Indices of their images in the split, -1 for an image that is not listed.
        labels: Indices of their classes, negative for a class that is not listed.
        boxes: x, y, width and height in pixels (n, 4).
        areas: Areas in pixels. Default: of the outlines, or else of the box.
        is_crowd: Whether they are ignored regions, such as COCO's crowds.
        is_ignored: Whether a COCO json has `ignore` for them.
        masks: n masks.
        names: n names in messages, None for an object that its id names.
        ids: n ids in the label file of the split, of any type. Default: none.
    """

    def __init__(
        self,
        images: Sequence[int],
        labels: Sequence[int],
        boxes: Sequence[Sequence[float]],
        masks: list[Mask],
        names: list[str | None],
        areas: Sequence[float | str | None],
        ids: list[Any] | None = None,
    ) -> None:
        self.images = np.array(images, int)
        self.labels = np.array(labels, int)
        self.boxes = np.array(boxes, float).reshape(-1, 4)
        self.masks = masks
        self.names = names
        self.ids = ids or [None] * len(names)
        self.is_crowd = np.zeros(len(self.labels), bool)
        self.is_ignored = np.zeros(len(self.labels), bool)
        self.areas = np.array(areas, float)  # None becomes NaN
        for row in np.flatnonzero(np.isnan(self.areas)):
            self.areas[row] = _area(self.masks[row], self.boxes[row])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def corners(self) -> np.ndarray:
        """Left, top, right and bottom of the boxes (n, 4)."""
        starts = self.boxes[:, :2]
        return np.hstack([starts, starts + self.boxes[:, 2:]])

    def select(self, is_kept: np.ndarray, images: np.ndarray, labels: np.ndarray) -> "Objects":
        """Return the rows that are kept (n,), each with its new index of image and of label."""
        selected = copy.copy(self)
        selected.images = images
        selected.labels = labels
        for name in ("boxes", "areas", "is_crowd", "is_ignored"):
            setattr(selected, name, getattr(self, name)[is_kept])
        for name in ("masks", "names", "ids"):
            setattr(selected, name, list(compress(getattr(self, name), is_kept)))
        return selected


def _area(mask: Mask, box: np.ndarray) -> float:
    outlines = [part for part in mask if is_outline(part)] if isinstance(mask, list) else []
    return sum(map(polygon_area, outlines)) if outlines else float(box[2] * box[3])


def is_outline(part: Any) -> bool:
    """Return whether a part of a mask is a polygon of at least three points."""
    return isinstance(part, array) and len(part) >= 6 and len(part) % 2 == 0


@dataclass
class Split:
    """Images and their labels.

    Attributes:
        images: n images.
        label_files: The file of the labels of each image, None without labels; or the COCO json of
            all.
        objects: Objects, or None if the images have maps, which are the label files.
    """

    images: list[Image]
    label_files: Sequence[Path | None] | Path
    objects: Objects | None = None

    @property
    def maps(self) -> list[Path]:
        """The segmentation map of each image."""
        assert self.objects is None and not isinstance(self.label_files, Path)
        return [path for path in self.label_files if path]

    @property
    def files(self) -> set[Path]:
        """All images and label files."""
        paths = [self.label_files] if isinstance(self.label_files, Path) else self.label_files
        return {image.path for image in self.images} | {path for path in paths if path}

    def count_empty(self) -> int:
        """Return the number of images without objects."""
        if self.objects is None:
            return 0
        return len(self.images) - len(np.unique(self.objects.images[self.objects.images >= 0]))

    def describe(self, classes: Sequence[str]) -> str:
        """Return the numbers of photos, objects and classes."""
        photos = counted(len(self.images), "photo")
        in_classes = f"of {counted(len(classes), 'class')}"
        if self.objects is None:
            return f"{photos} with maps {in_classes}"
        empty = self.count_empty()
        without = f", {empty:,} without objects" if empty else ""
        return f"{photos}{without}, {counted(len(self.objects), 'object')} {in_classes}"

    def name_object(self, row: int) -> str:
        """Name an object by its line or id, and by its file or image."""
        assert self.objects is not None
        name = self.objects.names[row]
        index = self.objects.images[row]
        if name is None:
            return f"id {self.objects.ids[row]} (image {self.images[index].path.name})"
        file = None if isinstance(self.label_files, Path) else self.label_files[index]
        return f"{name} of {file}" if file else name


@dataclass
class Dataset:
    """A data set. What is found is what is used and what is left out.

    Attributes:
        data_format: COCO, YOLO, maps, or tiles of a raster.
        classes: Names of the labels 0, 1, ...
        splits: The split 'train', and perhaps 'val' and 'test'.
        left_out: What is not used.
        inventory: The files among which the data set was found, or None if they were made.
        source: The first file that speaks for the format.
        descriptions: Files that describe the whole, such as data.yaml or a COCO json.
    """

    data_format: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    left_out: LeftOut
    inventory: Inventory | None = None
    source: Path | None = None
    descriptions: Sequence[Path] = ()

    def __post_init__(self) -> None:
        if not self.training.images:
            fix = "draw polygons or boxes, in photos of the training"
            raise ValueError(f"no photo for training is left: {fix}; left out: {self.left_out}")
        if {"val", "test"} <= self.splits.keys():
            photos = [image.path for image in self.splits["test"].images]
            self.left_out.add_files("photo", "of test, because val is held out", photos)
        if self.inventory is not None:
            self._leave_out_unused(self.inventory)

    def _leave_out_unused(self, inventory: Inventory) -> None:
        """Leave out unused files."""
        explained = {*self.descriptions, *self.left_out.files}
        for split in self.splits.values():
            explained |= split.files
        self.left_out.add_files("other file", "", inventory.without(explained))
        for folder in sorted(inventory.results):
            self.left_out.add("folder", "of results", folder)

    @property
    def training(self) -> Split:
        """What is trained on."""
        return self.splits["train"]

    @property
    def held_out(self) -> Split | None:
        """What is not trained on, if there is anything."""
        return self.splits.get("val") or self.splits.get("test")

    def count_labels(self) -> int:
        """Return the number of objects in all splits, or of maps."""
        splits = self.splits.values()
        return sum(len(split.maps if split.objects is None else split.objects) for split in splits)

    def describe(self) -> str:
        """Return what is trained on, held out and left out."""
        parts = [self.training.describe(self.classes)]
        if self.held_out:
            parts.append(f"held out {counted(len(self.held_out.images), 'photo')}")
        left_out = str(self.left_out)
        if left_out:
            parts.append(f"left out: {left_out}")
        return "; ".join(parts)


def check_repeated(names: Sequence[Any], file: Path) -> None:
    """Raise ValueError if a file names two labels alike."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise ValueError(f"{file} has {name!r} twice: give each label a name of its own")
