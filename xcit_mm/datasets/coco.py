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
        return bytes(self.segmentation) not in (b"[]", b"[[]]", b"null")


class CocoFile(Struct):
    """The content of a json."""

    images: list[CocoImage]
    categories: list[Category]
    annotations: list[Annotation] = []


class ImageList(Struct):
    """The content of a json of images to predict."""

    images: list[NamedImage]
    categories: list[Category] = []


_Content = TypeVar("_Content", CocoFile, ImageList)


def read_coco(path: Path) -> CocoFile:
    """Read a json of images with labels.

    Raises:
        ValueError: If it does not have the schema, an id or name of images or categories occurs
            twice, or an annotation belongs to none of them. The message names the place.
    """
    coco = _read(path, CocoFile)
    image_ids = {image.id for image in coco.images}
    category_ids = {category.id for category in coco.categories}
    for number, annotation in enumerate(coco.annotations):
        place = f"at $.annotations[{number}] (id {annotation.id})"
        if annotation.image_id not in image_ids:
            raise ValueError(f"{path}: no image has the id {annotation.image_id} - {place}")
        if annotation.category_id not in category_ids:
            raise ValueError(f"{path}: no category has the id {annotation.category_id} - {place}")
    return coco


def read_images(path: Path) -> ImageList:
    """Read a json of images to predict. The errors are those of `read_coco`."""
    return _read(path, ImageList)


def _read(path: Path, schema: type[_Content]) -> _Content:
    encoded = path.read_bytes()
    try:
        content = msgspec.json.decode(encoded, type=schema)
    except ValueError as error:  # of the schema, of json, or of UTF-8
        raise ValueError(f"{path}: {error}{_find_id(encoded, str(error))}") from None
    for noun, entries in (("images", content.images), ("categories", content.categories)):
        check_unique((entry.id for entry in entries), f"{path}: two {noun} have the id")
    check_unique((image.file_name for image in content.images), f"{path}: two images are named")
    check_unique((entry.name for entry in content.categories), f"{path}: two categories are named")
    return content


def _find_id(encoded: bytes, message: str) -> str:
    """Return the id of the entry in which msgspec found an error, as ' (id 3)', or ''."""
    place = re.search(r"\$\.(images|categories|annotations)\[(\d+)\]", message)
    if place is None:
        return ""
    lists = msgspec.json.decode(encoded, type=dict[str, Raw])
    entries = msgspec.json.decode(lists[place[1]], type=list[Raw])
    entry = msgspec.json.decode(entries[int(place[2])])
    return f" (id {entry['id']})" if isinstance(entry, dict) and "id" in entry else ""


def check_unique(values: Iterable[_Value], problem: str) -> None:
    """Raise ValueError with a problem and the first repeated value, if a value occurs twice."""
    seen: set[_Value] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{problem} {str(value)!r}")
        seen.add(value)
