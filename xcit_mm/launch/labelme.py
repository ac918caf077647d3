"""labelme's format: a json of shapes for each image."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .dataset import Shape, box_around


def read_shapes(path: Path, left_out: Counter[str]) -> list[Shape]:
    """Read the polygons and rectangles of a photo. Those of one label and group are parts of one
    object. Other shapes are counted as left out.
    """
    parts: dict[tuple, list[dict]] = {}
    try:
        for number, shape in enumerate(json.loads(path.read_bytes())["shapes"]):
            group = shape.get("group_id")
            key = (shape["label"], number if group is None else f"group {group}")
            shape_type = shape.get("shape_type", "polygon")
            if shape_type in ("polygon", "rectangle"):
                parts.setdefault(key, []).append(shape)
            else:
                left_out[f"shapes of the type {shape_type}"] += 1
        return [_join(str(label), shapes) for (label, _), shapes in parts.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}): expected labelme's shapes") from None


def _join(label: str, shapes: Sequence[dict]) -> Shape:
    """Join the parts of an object. A rectangle, given by two corners, makes it a box without a
    mask.
    """
    parts = [np.asarray(shape["points"], float).reshape(-1, 2) for shape in shapes]
    has_rectangle = any(shape.get("shape_type") == "rectangle" for shape in shapes)
    polygons = [] if has_rectangle else [part.ravel().tolist() for part in parts]
    return Shape(label, box_around(np.concatenate(parts)), polygons)
