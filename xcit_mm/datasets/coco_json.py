"""COCO jsons: ids, names and numbers of any tool, read into columns."""

import gc
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..utils.texts import class_name, read_text
from .old_dataset import Objects
from .photo_labels import is_rotation, is_set

_REQUIRED = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id"),
}
_REQUIRED_BY_MMDET = {
    "images": (*_REQUIRED["images"], "height", "width"),
    "categories": _REQUIRED["categories"],
    "annotations": (*_REQUIRED["annotations"], "area", "iscrowd"),
}


class _Annotation(NamedTuple):
    """An annotation, in a quarter of the memory of its dict. What it lacks is None."""

    id: Any
    image_id: Any
    category_id: Any
    bbox: Any
    area: Any
    iscrowd: Any
    ignore: Any
    xcit_mm_origin: Any  # in jsons that `write_coco` wrote
    segmentation: Any
    rotation: Any
    has_keypoints: bool


_KEYS_AS_WRITTEN = _Annotation._fields[:8]


@dataclass
class CocoJson:
    """A COCO json.

    Attributes:
        images: Its images, each a dict with `id` and `file_name`.
        categories: Its categories, each a dict with `id` and `name`.
        category_names: Names of the categories in their order.
        objects: Its annotations. Images and labels are indices in the lists, or -1 if an annotation
            has another id.
        unknown: Names of the annotations of an unknown image or category.
        is_rotated: Which annotations are rotated boxes without an outline.
        keypoints: Number of annotations with keypoints.
    """

    path: Path
    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    category_names: list[str]
    objects: Objects
    unknown: list[str]
    is_rotated: np.ndarray
    keypoints: int


@contextmanager
def without_collection() -> Iterator[None]:
    """Make millions of objects without a search for cycles, which takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collection()
def load_json(path: Path) -> Any:
    """Read a json. Annotations become tuples.

    Raises:
        ValueError: If the file is not JSON.
    """
    document = read_text(path)
    try:
        with suppress(msgspec.MsgspecError, RecursionError):
            return _decode_standard(document)
        return json.loads(document, object_hook=_pack)
    except (ValueError, RecursionError) as error:
        problem = "is not in COCO's format" if '"annotations"' in document else "cannot be read"
        raise ValueError(f"{path} {problem}: {error}") from None


def _decode_standard(document: str) -> dict[str, Any]:
    """Decode an object in the standard's JSON, which has no NaN, in less time than `json`.

    One annotation at a time is in memory as a dict.
    """
    parts = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    decode = msgspec.json.Decoder().decode
    annotations = parts.pop("annotations", None)
    content = {key: decode(part) for key, part in parts.items()}
    if annotations is not None:
        entries = msgspec.json.decode(annotations, type=list[msgspec.Raw])
        content["annotations"] = [_pack(decode(entry)) for entry in entries]
    return content


def _pack(entry: Any) -> Any:
    """Return an annotation of a detector's json as a tuple, and other values as they are."""
    if not isinstance(entry, dict) or "image_id" not in entry:
        return entry
    if not ("bbox" in entry or "category_id" in entry):
        return entry
    mask = entry.get("segmentation")
    if isinstance(mask, list):
        mask = [_pack_numbers(part) for part in mask]
    attributes = entry.get("attributes")
    rotation = attributes.get("rotation") if isinstance(attributes, dict) else None
    has_keypoints = bool(entry.get("keypoints")) and entry.get("num_keypoints") != 0
    as_written = map(entry.get, _KEYS_AS_WRITTEN)
    return _Annotation._make([*as_written, mask, rotation, has_keypoints])


def _pack_numbers(part: Any) -> Any:
    """Return numbers as an array, which is smaller, and other values as they are."""
    try:
        return array("d", part) if isinstance(part, list) else part
    except (TypeError, OverflowError):  # not of numbers, which a check reports
        return part


@without_collection()
def read_coco(path: Path, content: Any = None, as_mmdet: bool = False) -> CocoJson:
    """Read a COCO json.

    Args:
        content: The content of the file, if `load_json` has read it.
        as_mmdet: Whether ids and numbers must be as mmdet reads them. Otherwise numbers may be
            texts, and areas, crowds and sizes of images may lack.

    Raises:
        ValueError: If the file is not in COCO's format.
    """
    content = load_json(path) if content is None else content
    try:
        _check(content, _REQUIRED_BY_MMDET if as_mmdet else _REQUIRED, as_mmdet)
        return _to_columns(path, content, as_mmdet)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None


def read_detections(path: Path) -> CocoJson | None:
    """Read a COCO json for detection, whose numbers may be texts. Return None for other jsons."""
    content = load_json(path)
    annotations = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(annotations, list) or "images" not in content:
        return None
    is_for_detection = any(isinstance(entry, _Annotation) for entry in annotations)
    return read_coco(path, content) if is_for_detection or not annotations else None


def read_images(path: Path) -> dict[str, Any]:
    """Read a COCO json whose annotations, if it has any, do not matter.

    Raises:
        ValueError: If it lists no images, an image has no `id` or `file_name`, two images share
            one of these, or a category has no `id` or `name`.
    """
    content = load_json(path)
    try:
        _check(content, {"images": _REQUIRED["images"]}, as_mmdet=True)
        if content.get("categories"):
            _check(content, {"categories": _REQUIRED["categories"]}, as_mmdet=True)
        _check_unique("images", "file_name", [image["file_name"] for image in content["images"]])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None
    return content


def _check(content: Any, required: Mapping[str, Sequence[str]], as_mmdet: bool) -> None:
    """Raise ValueError unless all lists exist, their entries have the keys, and ids differ."""
    for name, keys in required.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError(f"it has no list {name!r}")
        for number, entry in enumerate(entries):
            if isinstance(entry, _Annotation):
                missing = [key for key in keys if getattr(entry, key) is None]
            else:
                missing = [key for key in keys if not isinstance(entry, dict) or key not in entry]
            if missing:
                raise ValueError(f"{name}[{number}] has no {', '.join(sorted(missing))}")
        for entry in entries if name == "images" else []:
            is_named = isinstance(entry["file_name"], str)
            if not is_named or not isinstance(entry["id"], (int, float, str)):
                image = f"the image of id {entry['id']!r}"
                raise ValueError(f"{image} has the name {entry['file_name']!r}")
        if name != "annotations":
            _check_unique(name, "id", [_read_id(entry["id"], as_mmdet) for entry in entries])
    if not content["images"]:
        raise ValueError("it lists no images")


def _check_unique(name: str, key: str, values: Sequence[Any]) -> None:
    for value, count in Counter(values).most_common(1):
        if count > 1:
            raise ValueError(f"{count} {name} with the {key} {value}: keep one of them")


def _read_id(value: Any, as_mmdet: bool) -> Any:
    """Return an id as it is for mmdet, or else the same number for the ids 1, 1.0 and '1'."""
    if as_mmdet or type(value) is int:
        return value
    text = str(value)
    digits = text.removesuffix(".0")
    is_number = digits.isdecimal() and str(int(digits)) == digits  # unlike 01
    return int(digits) if is_number else text


def _to_columns(path: Path, content: dict[str, Any], as_mmdet: bool) -> CocoJson:
    """Return a json with its annotations as columns, after a check of the boxes."""
    annotations: list[_Annotation] = content["annotations"]
    images = {_read_id(image["id"], as_mmdet): row for row, image in enumerate(content["images"])}
    categories = enumerate(content["categories"])
    labels = {_read_id(category["id"], as_mmdet): row for row, category in categories}
    for annotation in annotations:
        _check_numbers(annotation, as_mmdet)
    objects = Objects(
        [images.get(_read_id(entry.image_id, as_mmdet), -1) for entry in annotations],
        [labels.get(_read_id(entry.category_id, as_mmdet), -1) for entry in annotations],
        [annotation.bbox for annotation in annotations],
        [annotation.segmentation or None for annotation in annotations],
        [annotation.xcit_mm_origin for annotation in annotations],
        [annotation.area for annotation in annotations],
        [annotation.id for annotation in annotations],
    )
    objects.is_crowd = np.array([is_set(entry.iscrowd) for entry in annotations], bool)
    objects.is_ignored = np.array([is_set(entry.ignore) for entry in annotations], bool)
    is_rotated = np.array([is_rotation(entry.rotation) for entry in annotations], bool)
    has_mask = np.array([bool(mask) for mask in objects.masks], bool)
    unknown = []
    for row in np.flatnonzero((objects.images < 0) | (objects.labels < 0)).tolist():
        image = objects.images[row]
        name = annotations[row].image_id if image < 0 else content["images"][image]["file_name"]
        unknown.append(f"id {annotations[row].id} (image {name})")
    return CocoJson(
        path,
        content["images"],
        content["categories"],
        [class_name(category["name"]) for category in content["categories"]],
        objects,
        unknown,
        is_rotated & ~has_mask,
        sum(annotation.has_keypoints for annotation in annotations),
    )


def _check_numbers(annotation: _Annotation, as_mmdet: bool) -> None:
    """Raise ValueError unless box and area are numbers, or, unless `as_mmdet`, texts of numbers."""
    if not isinstance(annotation.area, (int, float) if as_mmdet else (int, float, str, NoneType)):
        problem = f"the area of annotation {annotation.id} is {annotation.area!r}"
        raise ValueError(f"{problem}, not a number")
    box = annotation.bbox
    is_valid = isinstance(box, list) and len(box) == 4
    try:
        is_valid = is_valid and all(map(isfinite, box if as_mmdet else map(float, box)))
    except (TypeError, ValueError, OverflowError):
        is_valid = False
    if not is_valid:
        problem = f"the bbox of annotation {annotation.id} is {box}"
        raise ValueError(f"{problem}, not [x, y, width, height]")
