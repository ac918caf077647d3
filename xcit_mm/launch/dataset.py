"""What a data set holds: its classes, the photos with labels that are trained on, and those that
are held out.

The readers of the formats make this description once. What the library reads is written from it.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..checks.files import read_infos
from ..utils.atomic import atomic_write
from ..utils.coco import new_annotation
from ..utils.errors import preview


class Shape(NamedTuple):
    """An object in a photo, in pixels.

    Attributes:
        label: Name of its class.
        box: x, y, width and height.
        polygons: Outlines of its parts, x, y, x, y, ... Empty if it has only a box.
        extras: Values of a COCO json that are kept, such as segmentation and area.
    """

    label: str
    box: Sequence[float]
    polygons: Sequence[Sequence[float]] = ()
    extras: Mapping[str, Any] = {}

    @property
    def has_mask(self) -> bool:
        return bool(self.polygons or self.extras.get("segmentation"))


def box_around(points: np.ndarray) -> list[float]:
    """Return x, y, width and height of the box around points (n, 2)."""
    corner = points.min(axis=0)
    return [*corner.tolist(), *(points.max(axis=0) - corner).tolist()]


class Photo(NamedTuple):
    """A photo with its objects. The size is width and height."""

    path: Path
    size: tuple[int, int]
    shapes: Sequence[Shape]


@dataclass
class Objects:
    """Photos with boxes, perhaps with masks."""

    photos: list[Photo]

    def __len__(self) -> int:
        return len(self.photos)

    def photo_paths(self) -> list[Path]:
        return [photo.path for photo in self.photos]

    def count_empty(self) -> int:
        """Return the number of photos without objects."""
        return sum(not photo.shapes for photo in self.photos)

    def describe(self, classes: Sequence[str]) -> str:
        objects = sum(len(photo.shapes) for photo in self.photos)
        empty = self.count_empty()
        without = f"{empty:,} without objects, " if empty else ""
        return f"{len(self):,} photos, {without}{objects:,} objects of {len(classes)} classes"

    def write(self, folder: Path, split: str, classes: Sequence[str]) -> dict[str, Any]:
        """Write a COCO json, and return the arguments by which mmdet's CocoDataset reads it."""
        category_ids = {name: number for number, name in enumerate(classes, start=1)}
        images = []
        annotations: list[dict] = []
        for image_id, (path, (width, height), shapes) in enumerate(self.photos, start=1):
            images.append(dict(id=image_id, file_name=str(path), width=width, height=height))
            for label, box, polygons, extras in shapes:
                annotation = new_annotation(category_ids[label], box, polygons)
                annotations.append(annotation | dict(extras, image_id=image_id))
        if not _have_usable_ids(annotations):
            for number, annotation in enumerate(annotations, start=1):
                annotation["id"] = number
        categories = [dict(id=number, name=name) for name, number in category_ids.items()]
        coco = dict(images=images, annotations=annotations, categories=categories)
        with atomic_write(folder / f"{split}.json") as file:
            file.write(json.dumps(coco).encode())
        return dict(ann_file=str(folder / f"{split}.json"), data_prefix=dict(img=""))


def _have_usable_ids(annotations: Sequence[dict]) -> bool:
    """Return whether the ids are different positive integers, as COCO's evaluation needs them."""
    ids = [annotation.get("id") for annotation in annotations]
    are_positive = all(type(value) is int and value > 0 for value in ids)
    return are_positive and len(set(ids)) == len(ids)


@dataclass
class Maps:
    """Photos with segmentation maps.

    Attributes:
        pairs: Each photo with its map.
        root: Folder below which all photos are.
    """

    pairs: list[tuple[Path, Path]]
    root: Path

    def __len__(self) -> int:
        return len(self.pairs)

    def photo_paths(self) -> list[Path]:
        return [photo for photo, _ in self.pairs]

    def describe(self, classes: Sequence[str]) -> str:
        return f"{len(self):,} photos with maps of {len(classes)} classes"

    def write(self, folder: Path, split: str, classes: Sequence[str]) -> dict[str, Any]:
        """Write a list of the photos, and links to the maps under the photos' names. Return the
        arguments by which mmseg's BaseSegDataset reads them.
        """
        names = [photo.relative_to(self.root).as_posix() for photo, _ in self.pairs]
        shutil.rmtree(folder / split, ignore_errors=True)
        for name, (_, label) in zip(names, self.pairs, strict=True):
            link = folder / split / f"{name}.png"  # Pillow knows a tif by its content
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(label.resolve())
        with atomic_write(folder / f"{split}.txt") as file:
            file.write("\n".join(names).encode())
        return dict(
            ann_file=str(folder / f"{split}.txt"),
            data_prefix=dict(img_path=str(self.root), seg_map_path=str(folder / split)),
            img_suffix="",
            seg_map_suffix=".png",
        )


Split = TypeVar("Split", Objects, Maps)


@dataclass
class Dataset(Generic[Split]):
    """A data set.

    Attributes:
        classes: Names of the labels 0, 1, ...
        training: Photos that are trained on.
        held_out: Photos that are not trained on, if there are any.
        left_out: Number of files and labels that are not used, by the reason.
    """

    classes: tuple[str, ...]
    training: Split
    held_out: Split | None
    left_out: Counter[str]

    def describe(self) -> str:
        """Return what is trained on, held out and left out."""
        parts = [self.training.describe(self.classes)]
        if self.held_out:
            parts.append(f"held out {len(self.held_out):,} photos")
        left_out = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        if left_out:
            parts.append(f"left out: {', '.join(left_out)}")
        return "; ".join(parts)


def new_dataset(
    classes: Sequence[str], splits: Mapping[str, Split], left_out: Counter[str]
) -> Dataset[Split]:
    """Describe a data set of 'train', and perhaps 'val' and 'test', of which 'val', or else
    'test', is held out.
    """
    if {"val", "test"} <= splits.keys():
        left_out["photos of test, because val is held out"] = len(splits["test"])
    held_out = splits.get("val") or splits.get("test")
    return Dataset(tuple(classes), splits["train"], held_out, left_out)


def _all_photos(dataset: Dataset[Objects]) -> Iterator[Photo]:
    yield from dataset.training.photos
    if dataset.held_out:
        yield from dataset.held_out.photos


def check_masks(dataset: Dataset[Objects]) -> bool:
    """Return whether the objects have masks.

    Raises:
        ValueError: If only some have masks. The message names those without.
    """
    count = 0
    without_mask = []
    for photo in _all_photos(dataset):
        count += len(photo.shapes)
        for shape in photo.shapes:
            if not shape.has_mask:
                name = shape.extras.get("id", shape.label)
                without_mask.append(f"{name} of {photo.path.name}")
    if 0 < len(without_mask) < count:
        problem = f"{len(without_mask)} of {count} objects have no mask: {preview(without_mask)}"
        raise ValueError(f"{problem}: draw or remove them, or train boxes alone by --boxes")
    return not without_mask


def check_bands(dataset: Dataset[Any]) -> None:
    """Raise ValueError for a tif with bands or bits that OpenCV would drop in silence."""
    paths = dataset.training.photo_paths()
    if dataset.held_out:
        paths += dataset.held_out.photo_paths()
    tifs = [str(path) for path in paths if path.suffix.lower() in (".tif", ".tiff")]
    for path, info in read_infos(tifs).items():
        if info.dropped_bands or info.bits > 8:
            found = f"{info.dropped_bands} bands" if info.dropped_bands else f"{info.bits} bits"
            problem = f"{path} has {found}, which are not those of a photo"
            raise ValueError(f"{problem}: write a config as in docs/bands.md")
