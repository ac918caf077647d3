"""What a data set holds: its classes, and for each split the images with labels.

The readers of the formats make this description once, and the config is written from it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ..utils.atomic import atomic_write
from ..utils.coco import Coco, new_annotation
from ..utils.images import image_size
from .files import common_folder


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
        json: File of the content. The readers of other formats leave it to `write`.
        left_out: Number of files and labels that are not used, by the reason.
    """

    content: Coco
    folder: Path
    json: Path | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.content["images"])

    def write(self, path: Path) -> None:
        """Write the content as a COCO json."""
        with atomic_write(path) as file:
            file.write(json.dumps(self.content).encode())
        self.json = path


@dataclass
class Maps:
    """Images with segmentation maps.

    Attributes:
        pairs: Each image with its map.
        left_out: Number of files that are not used, by the reason.
    """

    pairs: list[tuple[Path, Path]]
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.pairs)


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
        width, height = image_size(path)
        file_name = path.relative_to(folder).as_posix()
        images.append(dict(id=image_id, file_name=file_name, width=width, height=height))
        for label, box, polygons in shapes:
            annotation = new_annotation(category_ids[label], box, polygons)
            annotations.append(dict(annotation, id=len(annotations) + 1, image_id=image_id))
    categories = [dict(id=number, name=name) for name, number in category_ids.items()]
    return Objects(dict(images=images, annotations=annotations, categories=categories), folder)
