"""COCO jsons: reading them, finding their images, and the boxes and masks of annotations.

A box of an annotation is [x, y, width, height] in pixels, elsewhere [left, top, right, bottom].
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

Coco = dict[str, Any]
"""Content of a COCO json: the lists `images`, `categories` and `annotations`."""

TO_PREDICT = {"images": ("id", "file_name")}
"""Keys that prediction reads."""

TO_TRAIN = {
    "images": ("id", "file_name", "height", "width"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id", "bbox", "area", "iscrowd"),
}
"""Keys that mmdet reads."""

_SAMPLE = 100  # images of a json that are looked for in each folder


def read_coco(
    path: str | Path,
    required: Mapping[str, Sequence[str]] = TO_TRAIN,
    unique: Sequence[str] = ("id",),
    convert: Callable[[dict], Any] | None = None,
    correct: Callable[[Coco], None] | None = None,
) -> Coco:
    """Read a COCO json, with or without a byte order mark.

    Args:
        required: Lists that the file must have, and the keys of each of their entries.
        unique: Keys that differ between two images, and between two categories.
        convert: Function that replaces each object of the json while it is read.
        correct: Function that changes the content before its values are checked.

    Raises:
        ValueError: If the file is not JSON, lists no images, lacks a list or key, repeats a unique
            key, or if a required box is not four finite numbers.
    """
    try:
        content = json.loads(Path(path).read_bytes(), object_hook=convert)
        for name, keys in required.items():
            _check_keys(content, name, keys)
        if correct:
            correct(content)
        for name in ("images", "categories"):
            _check_unique(name, content.get(name) or [], unique)
        for annotation in content["annotations"] if "annotations" in required else []:
            _check_box(annotation)
        if not content["images"]:
            raise ValueError("it lists no images")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None
    return content


def _check_keys(content: Any, name: str, keys: Sequence[str]) -> None:
    """Raise ValueError unless a list exists, and each of its entries has the keys."""
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"it has no list {name!r}")
    for number, entry in enumerate(entries):
        missing = set(keys).difference(entry if isinstance(entry, dict) else ())
        if missing:
            raise ValueError(f"{name}[{number}] has no {', '.join(sorted(missing))}")


def _check_unique(name: str, entries: Sequence[dict], keys: Sequence[str]) -> None:
    for key in keys:
        counts = Counter(entry[key] for entry in entries if key in entry)
        for value, count in counts.most_common(1):
            if count > 1:
                raise ValueError(f"{count} {name} with the {key} {value}: keep one of them")


def _check_box(annotation: dict) -> None:
    box = annotation["bbox"]
    if len(box) != 4 or not all(map(isfinite, box)):
        owner = f"annotation {annotation.get('id')}"
        raise ValueError(f"the bbox of {owner} is {box}, not [x, y, width, height]")


def find_image_folder(path: Path, file_names: Sequence[str]) -> Path | None:
    """Find the folder to which the file names of a COCO json are relative.

    It is the first folder with some of the images: the json's folder, `images` in it, a folder
    named as the json without `instances_`, and that folder in `images`; then the same in the folder
    above.
    """
    name = path.stem.removeprefix("instances_")
    places = [
        parent / folder
        for parent in (path.parent, path.parent.parent)
        for folder in ("", "images", name, f"images/{name}")
    ]
    sample = file_names[:: max(1, len(file_names) // _SAMPLE)]
    for place in places:
        if any((place / file_name).is_file() for file_name in sample):
            return place
    return None


def to_corners(boxes: Any) -> np.ndarray:
    """Convert COCO's boxes (n, 4) into left, top, right and bottom."""
    x, y, width, height = np.asarray(boxes, float).reshape(-1, 4).T
    return np.stack([x, y, x + width, y + height], axis=1)


def from_corners(boxes: Any) -> np.ndarray:
    """Convert boxes (n, 4) of left, top, right and bottom into COCO's."""
    left, top, right, bottom = np.asarray(boxes).reshape(-1, 4).T
    return np.stack([left, top, right - left, bottom - top], axis=1)


def new_annotation(
    category_id: int, box: Sequence[float], polygons: Sequence[Sequence[float]] = ()
) -> dict[str, Any]:
    """Return an annotation without `id` and `image_id`.

    Args:
        box: x, y, width and height in pixels.
        polygons: Outlines of the mask's parts, each as x, y, x, y, ... Empty for a box alone.
    """
    x, y, width, height = map(float, box)
    area = sum(map(polygon_area, polygons)) if polygons else width * height
    return dict(
        category_id=category_id,
        bbox=[x, y, width, height],
        area=area,
        iscrowd=0,
        segmentation=[list(map(float, polygon)) for polygon in polygons],
    )


def polygon_area(polygon: Sequence[float]) -> float:
    """Return the area in pixels of a polygon given as x, y, x, y, ..."""
    x = polygon[::2]
    y = polygon[1::2]
    clockwise = sum(map(mul, x[1:], y)) + x[0] * y[-1]
    counterclockwise = sum(map(mul, x, y[1:])) + x[-1] * y[0]
    return abs(counterclockwise - clockwise) / 2


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask (H, W), bool or uint8, as the RLE of COCO jsons: `size` and `counts`."""
    from pycocotools import mask as rle  # which is needed for training only

    code: Any = rle.encode(np.asfortranarray(mask, np.uint8))
    return dict(size=code["size"], counts=code["counts"].decode())
