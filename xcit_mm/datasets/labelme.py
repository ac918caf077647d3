"""labelme's format: a json of shapes for each image."""

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.texts import class_name
from .coco_json import load_json
from .dataset import Dataset, NewObject
from .inventory import Inventory
from .photo_labels import PhotoLabels, box_around, read_folder, stated_size

_WITH_AREA = ("polygon", "rectangle")
_IGNORED = "__ignore__"  # the label that labelme's own converters leave out
_WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read(inventory: Inventory) -> Dataset | None:
    """Read a folder that has labelme's jsons."""
    shapes = {}
    for path, keys in inventory.keys_of_jsons.items():
        content = load_json(path) if "shapes" in keys else None
        if isinstance(content, dict) and "shapes" in content:
            shapes[path] = read_shapes(path, content)
    return read_folder("labelme", list(shapes), shapes.__getitem__, inventory)


def read_shapes(path: Path, content: dict[str, Any]) -> PhotoLabels:
    """Read the polygons and rectangles of a photo. Those of one label and group are parts of one
    object. Shapes without an area and of other types are counted.

    Raises:
        ValueError: If the file has another structure.
    """
    parts: dict[tuple, list[dict]] = {}
    unread: Counter[str] = Counter()
    without_area: Counter[str] = Counter()
    try:
        for number, shape in enumerate(content["shapes"], start=1):
            shape_type = shape.get("shape_type") or "polygon"
            if "label" not in shape or not shape.get("points"):
                raise ValueError(f"shape {number} has no label or no points")
            if shape["label"] == _IGNORED:
                without_area[f"of the label {_IGNORED}"] += 1
            elif shape_type == "rectangle" and _is_rotated(shape["points"]):
                unread["rotated boxes"] += 1
            elif shape_type in _WITH_AREA:
                group = shape.get("group_id")
                key = (
                    class_name(shape["label"]),
                    number if group in (None, "") else f"group {group}",
                )
                parts.setdefault(key, []).append(shape)
            elif shape_type in _WITHOUT_AREA:
                without_area[f"of the type {shape_type}"] += 1
            else:
                unread[f"shapes of the type {shape_type}"] += 1
        objects = []
        for (label, number_or_group), shapes in parts.items():
            outlines = [np.asarray(shape["points"], float).reshape(-1, 2) for shape in shapes]
            # A rectangle, given by two corners, makes the object a box without a mask.
            has_rectangle = any(shape.get("shape_type") == "rectangle" for shape in shapes)
            mask = None if has_rectangle else [array("d", part.ravel()) for part in outlines]
            box = box_around(np.concatenate(outlines))
            objects.append(NewObject(label, box, mask, f"shape {number_or_group}"))
        size = stated_size(content.get("imageWidth"), content.get("imageHeight"))
        return PhotoLabels(objects, size, unread, without_area, content.get("imagePath"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected labelme's shapes") from None


def _is_rotated(points: Sequence[Sequence[float]]) -> bool:
    """Return whether a rectangle of four corners, as X-AnyLabeling writes it, has more than two
    different columns or rows.
    """
    columns_and_rows = zip(*points, strict=True)
    return any(len(set(map(round, values))) > 2 for values in columns_and_rows)
