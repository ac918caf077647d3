"""COCO's format: a JSON file with images, categories and annotations.

The schema requires what mmdet and pycocotools read. Other keys are ignored. A box in a file is
[x, y, width, height] in pixels. Elsewhere in this package it is [left, top, right, bottom].
"""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from ..utils.atomic import atomic_path

_Pixels = Annotated[int, Meta(ge=1)]


class CocoImage(Struct, gc=False):
    """An image. Its size is in pixels, after the rotation that EXIF asks for."""

    id: int
    file_name: str
    width: _Pixels
    height: _Pixels


class Category(Struct, gc=False):
    """A class of objects."""

    id: int
    name: str


class Annotation(Struct, gc=False):
    """An object in an image.

    Attributes:
        bbox: x, y, width and height in pixels.
        segmentation: Polygons or RLE, as unparsed text.
        ignore: Whether mmdet leaves the object out of the training.
    """

    id: int
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float
    iscrowd: Literal[0, 1] | bool = 0
    segmentation: Raw = Raw(b"[]")
    ignore: Literal[0, 1] | bool = 0

    @property
    def has_mask(self) -> bool:
        """Whether the segmentation is neither empty nor null."""
        return b"," in bytes(self.segmentation)  # unlike [], [[]] and null, with any spaces


class CocoFile(Struct):
    """The content of a COCO json. A list of images to predict needs only `images`."""

    images: list[CocoImage]
    categories: list[Category] = []
    annotations: list[Annotation] = []


def read_coco(path: Path) -> CocoFile:
    """Read a COCO json.

    Raises:
        ValueError: If the file does not match the schema, an id or name of an image or category
            occurs twice, or an annotation refers to no image or category. The message names the
            place in the file.
    """
    try:
        coco = msgspec.json.decode(path.read_bytes(), type=CocoFile)
    except ValueError as error:  # from the schema, from JSON, or from UTF-8
        fix = ": docs/your-own-data.md#coco shows how to add it" if "area`" in str(error) else ""
        raise ValueError(f"{path}: {error}{fix}") from None
    for noun, entries in (("images", coco.images), ("categories", coco.categories)):
        check_unique((entry.id for entry in entries), f"{path}: two {noun} have the id")
    check_unique((image.file_name for image in coco.images), f"{path}: two images are named")
    check_unique((entry.name for entry in coco.categories), f"{path}: two categories are named")
    image_ids = {image.id for image in coco.images}
    category_ids = {category.id for category in coco.categories}
    for number, entry in enumerate(coco.annotations):
        if entry.image_id not in image_ids:
            problem = f"no image has the id {entry.image_id}"
        elif entry.category_id not in category_ids:
            problem = f"no category has the id {entry.category_id}"
        else:
            continue
        raise ValueError(f"{path}: {problem} - at `$.annotations[{number}]`")
    return coco


def write_coco(
    path: Path, classes: Sequence[str], images: list[CocoImage], annotations: list[Annotation]
) -> CocoFile:
    """Write a COCO json, and return its content.

    Annotations and classes are numbered from 1, as pycocotools needs them. Several tests of a model
    may write the same file at the same time.
    """
    for number, annotation in enumerate(annotations, start=1):
        annotation.id = number
    categories = [Category(number, name) for number, name in enumerate(classes, start=1)]
    content = CocoFile(images, categories, annotations)
    with atomic_path(path, is_shared=True) as new:
        new.write_bytes(msgspec.json.encode(content))
    return content


def check_unique(values: Iterable[Hashable], problem: str) -> None:
    """Raise ValueError with `problem` and the first value that occurs twice, if there is one."""
    seen: set[Hashable] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{problem} {str(value)!r}")
        seen.add(value)


def from_corners(boxes: Any) -> np.ndarray:
    """Convert boxes (n, 4) from left, top, right, bottom to COCO's left, top, width, height."""
    left, top, right, bottom = np.asarray(boxes).reshape(-1, 4).T
    return np.stack([left, top, right - left, bottom - top], axis=1)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask (H, W), bool or uint8 of 0 and 1, as the RLE of COCO: `size` and `counts`."""
    from pycocotools import mask as rle  # only masks need it

    code: Any = rle.encode(np.asfortranarray(mask, np.uint8))
    return dict(size=code["size"], counts=code["counts"].decode())
