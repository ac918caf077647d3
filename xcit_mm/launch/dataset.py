"""What a data set holds: its classes, and for each split the images with labels.

The readers of the formats make this description once, and the config is written from it.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from PIL import Image, UnidentifiedImageError

from ..utils.atomic import atomic_path, atomic_write
from ..utils.coco import Coco, new_annotation
from ..utils.images import image_size
from .files import common_folder, divide_labelled, find_photos, list_files


class Shape(NamedTuple):
    """An object in a photo, in pixels.

    Attributes:
        label: Name of its class.
        box: x, y, width and height.
        polygons: Outlines of its parts, x, y, x, y, ... None if it has only a box.
    """

    label: str
    box: Sequence[float]
    polygons: Sequence[Sequence[float]] = ()


@dataclass
class Objects:
    """Images with boxes, perhaps with masks.

    Attributes:
        content: Images, categories and annotations in COCO's format.
        folder: Folder to which the file names of the images are relative.
        json: File of the content. None if no file has it: `write` writes one.
        left_out: Number of files and labels that are not used, by the reason.
        corrected: Number of entries that differ from those of the user's json, by kind.
    """

    content: Coco
    folder: Path
    json: Path | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    corrected: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.content["images"])

    @property
    def is_written(self) -> bool:
        """Whether mmdet can read the split."""
        return self.json is not None

    def write(self, copies: Path, split: str) -> None:
        """Write the content as a COCO json."""
        self.json = copies / f"{split}.json"
        with atomic_write(self.json) as file:
            file.write(json.dumps(self.content).encode())

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by which mmdet's CocoDataset reads the split."""
        return dict(ann_file=str(self.json), data_prefix=dict(img=str(self.folder)))

    @property
    def empty(self) -> int:
        """Number of images without objects."""
        annotations = self.content["annotations"]
        return len(self) - len({annotation["image_id"] for annotation in annotations})

    def describe(self, classes: int) -> str:
        annotations = self.content["annotations"]
        parts = [f"{len(self):,} photos"]
        if self.empty:
            parts.append(f"{self.empty:,} without objects")
        return ", ".join([*parts, f"{len(annotations):,} objects of {classes} classes"])


@dataclass
class Maps:
    """Images with segmentation maps.

    Attributes:
        pairs: Each image with its map.
        list_file: Names of the images, whose maps are copied beside it, where no pattern leads
            from the images to their maps.
        left_out: Number of files that are not used, by the reason.
    """

    pairs: list[tuple[Path, Path]]
    list_file: Path | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def is_written(self) -> bool:
        """Whether mmseg can read the split: folders that differ by names and suffixes only."""
        photos, maps = self._folders()
        photo_suffix, map_suffix = self._suffixes()
        listed = [path for path in list_files(photos) if path.name.endswith(photo_suffix)]
        expected = []
        for photo in listed:
            stem = str(photo.relative_to(photos)).removesuffix(photo_suffix)
            expected.append((photo, maps / f"{stem}{map_suffix}"))
        return expected == self.pairs

    def write(self, copies: Path, split: str) -> None:
        """Write a list of the images, and copies of the maps under the images' names."""
        photos = self._folders()[0]
        names = [photo.relative_to(photos).as_posix() for photo, _ in self.pairs]
        for name, (_, label) in zip(names, self.pairs, strict=True):
            with atomic_path(copies / split / f"{name}.png", fsync=False) as path:
                if label.suffix.lower() == ".png":
                    shutil.copyfile(label, path)
                else:
                    Image.open(label).save(path)
        self.list_file = copies / f"{split}.txt"
        with atomic_write(self.list_file) as file:
            file.write("\n".join(names).encode())

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by which mmseg's BaseSegDataset reads the split."""
        photos, maps = self._folders()
        photo_suffix, map_suffix = self._suffixes()
        arguments: dict[str, Any] = {}
        if self.list_file:
            maps = self.list_file.with_suffix("")
            photo_suffix = ""
            map_suffix = ".png"
            arguments["ann_file"] = str(self.list_file)
        arguments["data_prefix"] = dict(img_path=str(photos), seg_map_path=str(maps))
        return arguments | dict(img_suffix=photo_suffix, seg_map_suffix=map_suffix)

    def describe(self, classes: int) -> str:
        return f"{len(self):,} photos with maps of {classes} classes"

    def _folders(self) -> tuple[Path, Path]:
        photos, maps = zip(*self.pairs, strict=True)
        return common_folder(photos), common_folder(maps)

    def _suffixes(self) -> tuple[str, str]:
        photo, label = self.pairs[0]
        return photo.suffix, label.name.removeprefix(photo.stem)


Split = TypeVar("Split", Objects, Maps)


@dataclass
class Dataset(Generic[Split]):
    """A data set.

    Attributes:
        classes: Names of the labels 0, 1, ...
        splits: 'train', and perhaps 'val' and 'test'.
    """

    classes: tuple[str, ...]
    splits: dict[str, Split]

    @property
    def training(self) -> Split:
        return self.splits["train"]

    @property
    def held_out(self) -> Split | None:
        """Images that are not trained on: of 'val', or else of 'test'."""
        return self.splits.get("val") or self.splits.get("test")

    def describe(self) -> str:
        """Return what is trained on, held out and left out."""
        parts = [self.training.describe(len(self.classes))]
        if self.held_out:
            parts.append(f"held out {len(self.held_out):,} photos")
        left_out = sum((split.left_out for split in self.splits.values()), Counter[str]())
        if {"val", "test"} <= self.splits.keys():
            left_out["photos of test, because val is held out"] = len(self.splits["test"])
        corrected = Counter[str]()
        for split in self.splits.values():
            corrected += getattr(split, "corrected", Counter())
        for verb, counts in (("left out", left_out), ("corrected in a copy", corrected)):
            listed = [f"{count:,} {reason}" for reason, count in counts.items() if count]
            if listed:
                parts.append(f"{verb}: {', '.join(listed)}")
        return "; ".join(parts)


def describe_labelled(data: Path, labels: Mapping[Path, Sequence[Shape]]) -> Dataset[Objects]:
    """Describe a folder with the objects of each file of labels. Photos without a file are left
    out.

    Raises:
        ValueError: If there are no training images.
    """
    photos = [path for path in find_photos(data) if "segmentation" not in path.parent.name.lower()]
    pairs, left_out = divide_labelled(photos, labels, data, "Main")
    # The photos of a split may lack a class.
    used = [label for split in pairs.values() for _, label in split]
    classes = tuple(sorted({shape.label for label in used for shape in labels[label]}))
    splits = {}
    for split, labelled in pairs.items():
        shapes = [(photo, labels[label]) for photo, label in labelled]
        splits[split] = describe_photos(shapes, classes)
    splits["train"].left_out.update(left_out)
    return Dataset(classes, splits)


def check_bands(photo: Path) -> None:
    """Raise ValueError for a tif that OpenCV would not read as it is meant."""
    if photo.suffix.lower() not in (".tif", ".tiff"):
        return
    with suppress(UnidentifiedImageError), Image.open(photo) as image:
        if image.mode in ("L", "P", "RGB"):
            return
    problem = f"{photo} may have many bands or 16 bits"
    raise ValueError(f"{problem}: write a config as in docs/bands.md")


def describe_photos(
    photos: Iterable[tuple[Path, Sequence[Shape]]], classes: Sequence[str]
) -> Objects:
    """Describe photos with their objects in COCO's format. Sizes are those that mmcv reads."""
    photos = list(photos)
    folder = common_folder([path for path, _ in photos])
    category_ids = {name: number for number, name in enumerate(classes, start=1)}
    images = []
    annotations: list[dict] = []
    for image_id, (path, shapes) in enumerate(photos, start=1):
        check_bands(path)
        width, height = image_size(path)
        file_name = path.relative_to(folder).as_posix()
        images.append(dict(id=image_id, file_name=file_name, width=width, height=height))
        for label, box, polygons in shapes:
            annotation = new_annotation(category_ids[label], box, polygons)
            annotations.append(dict(annotation, id=len(annotations) + 1, image_id=image_id))
    categories = [dict(id=number, name=name) for name, number in category_ids.items()]
    return Objects(dict(images=images, annotations=annotations, categories=categories), folder)
