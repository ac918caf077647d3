"""COCO's format: a json with images, categories and annotations.

The schema asks for what mmdet and pycocotools read, and ignores other keys.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

_Pixels = Annotated[int, Meta(ge=1)]
_NO_MASK = re.compile(rb"[\[\s]*(\]|null|$)")  # [], [[]] or null
_Content = TypeVar("_Content")
_Value = TypeVar("_Value")


class NamedImage(Struct, gc=False):
    """An image of a json that is to be predicted."""

    id: int
    file_name: str


class CocoImage(NamedImage, gc=False):
    """An image with labels. Its size is in pixels, after EXIF's orientation."""

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
        segmentation: Text of polygons or of an RLE, which nothing here parses.
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
        return _NO_MASK.match(self.segmentation) is None


class CocoFile(Struct):
    """The content of a json."""

    images: list[CocoImage]
    categories: list[Category]
    annotations: list[Annotation] = []


class ImageList(Struct):
    """The content of a json of images to predict."""

    images: list[NamedImage]
    categories: list[Category] = []


def read_coco(path: Path) -> CocoFile:
    """Read a json of images with labels.

    Raises:
        ValueError: If it does not have the schema, an id or name of images or categories occurs
            twice, or an annotation belongs to none of them. The message names the place.
    """
    coco = _decode(path, CocoFile)
    image_ids = _check_names(path, coco)
    category_ids = {category.id for category in coco.categories}
    for number, annotation in enumerate(coco.annotations):
        if annotation.image_id not in image_ids:
            problem = f"no image has the id {annotation.image_id}"
        elif annotation.category_id not in category_ids:
            problem = f"no category has the id {annotation.category_id}"
        else:
            continue
        raise ValueError(f"{path}: {problem} - at $.annotations[{number}] (id {annotation.id})")
    return coco


def read_images(path: Path) -> ImageList:
    """Read a json of images to predict. The errors are those of `read_coco`."""
    listed = _decode(path, ImageList)
    _check_names(path, listed)
    return listed


def _check_names(path: Path, content: CocoFile | ImageList) -> set[int]:
    """Return the ids of images. Raise ValueError if two images or categories have an id or name."""
    check_unique((image.file_name for image in content.images), f"{path}: two images are named")
    check_unique((part.name for part in content.categories), f"{path}: two categories are named")
    check_unique((part.id for part in content.categories), f"{path}: two categories have the id")
    return check_unique((image.id for image in content.images), f"{path}: two images have the id")


def _decode(path: Path, schema: type[_Content]) -> _Content:
    encoded = path.read_bytes()
    try:
        return msgspec.json.decode(encoded, type=schema)
    except ValueError as error:  # of the schema, of json, or of UTF-8
        raise ValueError(f"{path}: {error}{_find_id(encoded, str(error))}") from None


def _find_id(encoded: bytes, message: str) -> str:
    """Return the id of the entry of a json in which msgspec found an error, as ' (id 3)', or ''."""
    place = re.search(r"\$\.(images|categories|annotations)\[(\d+)\]", message)
    if place is None:
        return ""
    entries = msgspec.json.decode(encoded, type=dict[str, Raw])[place[1]]
    entry = msgspec.json.decode(msgspec.json.decode(entries, type=list[Raw])[int(place[2])])
    return f" (id {entry['id']})" if isinstance(entry, dict) and "id" in entry else ""


def check_unique(values: Iterable[_Value], problem: str) -> set[_Value]:
    """Return the values, or raise ValueError with a problem and the first repeated value."""
    seen: set[_Value] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{problem} {str(value)!r}")
        seen.add(value)
    return seen
