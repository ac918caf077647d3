"""COCO jsons: ids, names and numbers of any tool, read into columns."""

import json
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..utils.texts import class_name
from .dataset import Objects
from .photo_labels import is_rotation

_READ = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id"),
}
_READ_BY_MMDET = {
    "images": (*_READ["images"], "height", "width"),
    "categories": _READ["categories"],
    "annotations": (*_READ["annotations"], "area", "iscrowd"),
}
_SAMPLE = 100  # images of a json that are looked for in each folder


class _Annotation(NamedTuple):
    """An annotation, in a quarter of the memory of its dict. What it lacks is None."""

    id: Any
    image_id: Any
    category_id: Any
    bbox: Any
    area: Any
    iscrowd: Any
    ignore: Any
    segmentation: Any
    rotation: Any
    origin: Any  # in jsons that `write_coco` wrote
    has_keypoints: bool


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
        info: What the file says about itself.
        is_rotated: Which annotations are rotated boxes without an outline.
        keypoints: Number of annotations with keypoints.
    """

    path: Path
    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    category_names: list[str]
    objects: Objects
    unknown: list[str]
    info: Any
    is_rotated: np.ndarray
    keypoints: int

    @property
    def ids(self) -> list[Any]:
        """The ids of the annotations, of any type."""
        return self.objects.ids


def is_coco(content: Any) -> bool:
    """Return whether a json has lists of images and annotations, as COCO's for detection."""
    if not isinstance(content, dict) or not isinstance(content.get("annotations"), list):
        return False
    annotations = content["annotations"]
    has_objects = not annotations or any(isinstance(entry, _Annotation) for entry in annotations)
    return "images" in content and has_objects


def load_json(path: Path) -> Any:
    """Read a json with or without a byte order mark. Annotations become tuples.

    Raises:
        ValueError: If the file is not JSON.
    """
    with path.open("rb") as file:
        encoding = json.detect_encoding(file.read(4))
    try:
        text = path.read_text(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    try:
        return json.loads(text, object_hook=_pack)
    except (ValueError, RecursionError) as error:
        problem = "is not in COCO's format" if '"annotations"' in text else "cannot be read"
        raise ValueError(f"{path} {problem}: {error}") from None


def _pack(entry: dict[str, Any]) -> Any:
    """Return an annotation of a detector's json as a tuple, and other dicts as they are."""
    if "image_id" not in entry or not ("bbox" in entry or "category_id" in entry):
        return entry
    mask = entry.get("segmentation")
    if isinstance(mask, list):
        mask = [_to_array(part) for part in mask]
    attributes = entry.get("attributes")
    return _Annotation(
        entry.get("id"),
        entry["image_id"],
        entry.get("category_id"),
        entry.get("bbox"),
        entry.get("area"),
        entry.get("iscrowd"),
        entry.get("ignore"),
        mask,
        attributes.get("rotation") if isinstance(attributes, dict) else None,
        entry.get("xcit_mm_origin"),
        bool(entry.get("keypoints")) and entry.get("num_keypoints") != 0,
    )


def _to_array(part: Any) -> Any:
    try:
        return array("d", part) if isinstance(part, list) else part
    except TypeError:  # not of numbers, which a check reports
        return part


def read_coco(path: Path, content: Any = None, exact: bool = False) -> CocoJson:
    """Read a COCO json.

    Args:
        content: The content of the file, if `load_json` has read it.
        exact: Whether ids and numbers must be as mmdet reads them. Otherwise numbers may be texts,
            and areas, crowds and sizes of images may lack.

    Raises:
        ValueError: If the file is not in COCO's format.
    """
    content = load_json(path) if content is None else content
    try:
        _check(content, _READ_BY_MMDET if exact else _READ, exact)
        return _to_columns(path, content, exact)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None


def read_images(path: Path) -> dict[str, Any]:
    """Read a COCO json whose annotations, if it has any, do not matter.

    Raises:
        ValueError: If it lists no images, an image has no `id` or `file_name`, or two images share
            one of these.
    """
    content = load_json(path)
    try:
        _check(content, {"images": _READ["images"]}, exact=True)
        _check_unique("images", "file_name", [image["file_name"] for image in content["images"]])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None
    return content


def _check(content: Any, required: Mapping[str, Sequence[str]], exact: bool) -> None:
    """Raise ValueError unless all lists exist, their entries have the keys, and ids differ."""
    for name, keys in required.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError(f"it has no list {name!r}")
        for number, entry in enumerate(entries):
            missing = [key for key in keys if _lacks(entry, key)]
            if missing:
                raise ValueError(f"{name}[{number}] has no {', '.join(sorted(missing))}")
        if name == "images":
            _check_types(entries)
        if name != "annotations":
            _check_unique(name, "id", [_read_id(entry["id"], exact) for entry in entries])
    if not content["images"]:
        raise ValueError("it lists no images")


def _check_types(images: Sequence[dict[str, Any]]) -> None:
    for image in images:
        is_named = isinstance(image["file_name"], str)
        if not is_named or not isinstance(image["id"], (int, float, str)):
            raise ValueError(f"the image of id {image['id']!r} has the name {image['file_name']!r}")


def _lacks(entry: Any, key: str) -> bool:
    if isinstance(entry, _Annotation):
        return getattr(entry, key) is None
    return not isinstance(entry, dict) or key not in entry


def _check_unique(name: str, key: str, values: Sequence[Any]) -> None:
    for value, count in Counter(values).most_common(1):
        if count > 1:
            raise ValueError(f"{count} {name} with the {key} {value}: keep one of them")


def _read_id(value: Any, exact: bool) -> Any:
    """Return an id, or else the same text for the ids 1, 1.0, '1' and '1.0'."""
    if exact:
        return value
    if type(value) is int:
        return str(value)
    try:
        return str(int(value)) if float(value).is_integer() else str(value)
    except (ValueError, TypeError, OverflowError):
        return str(value)


def _to_columns(path: Path, content: dict[str, Any], exact: bool) -> CocoJson:
    annotations: list[_Annotation] = content["annotations"]
    images = {_read_id(entry["id"], exact): row for row, entry in enumerate(content["images"])}
    labels = {_read_id(entry["id"], exact): row for row, entry in enumerate(content["categories"])}
    for annotation in annotations:
        _check_box(annotation, exact)
    objects = Objects(
        [images.get(_read_id(entry.image_id, exact), -1) for entry in annotations],
        [labels.get(_read_id(entry.category_id, exact), -1) for entry in annotations],
        [annotation.bbox for annotation in annotations],
        [annotation.segmentation or None for annotation in annotations],
        [annotation.origin for annotation in annotations],
        [annotation.area for annotation in annotations],
        [annotation.id for annotation in annotations],
    )
    objects.is_crowd = np.array([_is_set(entry.iscrowd) for entry in annotations], bool)
    objects.is_ignored = np.array([_is_set(entry.ignore) for entry in annotations], bool)
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
        content.get("info"),
        is_rotated & ~has_mask,
        sum(annotation.has_keypoints for annotation in annotations),
    )


def _check_box(annotation: _Annotation, exact: bool) -> None:
    box = annotation.bbox
    numbers = box if exact or not isinstance(box, list) else list(map(_to_number, box))
    try:
        is_valid = len(numbers) == 4 and all(map(isfinite, numbers))
    except TypeError:
        is_valid = False
    if not is_valid:
        problem = f"the bbox of annotation {annotation.id} is {box}"
        raise ValueError(f"{problem}, not [x, y, width, height]")


def _to_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _is_set(value: Any) -> bool:
    """Return whether a number, which may be a text, is not 0."""
    return bool(value) and _to_number(value) != 0


def find_image_folder(path: Path, file_names: Sequence[str]) -> Path | None:
    """Find the folder to which the file names of a COCO json are relative.

    It is the first folder with some of the images: the json's folder, `images` in it, a folder
    named as the json without `instances_`, and that folder in `images`; then the same in the folder
    above.
    """
    name = path.stem.removeprefix("instances_")
    candidates = [
        parent / folder
        for parent in (path.parent, path.parent.parent)
        for folder in ("", "images", name, f"images/{name}")
    ]
    sample = file_names[:: max(1, len(file_names) // _SAMPLE)]
    for folder in candidates:
        if any((folder / file_name).is_file() for file_name in sample):
            return folder
    return None


def read_stated_size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return width and height of an image of a json, or None if it does not state both."""
    sides = [_to_number(image.get(side)) for side in ("width", "height")]
    if not all(isfinite(side) and side > 0 for side in sides):
        return None
    return int(sides[0]), int(sides[1])
