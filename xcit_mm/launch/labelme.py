"""labelme's format: a json of shapes for each image."""

import json
from collections import Counter
from collections.abc import Sequence
from math import tau
from pathlib import Path

import numpy as np

from ..utils.coco import from_corners
from .dataset import Dataset, Objects, Shape, describe_labelled


def read_labelme(data: Path, jsons: Sequence[Path]) -> Dataset[Objects]:
    """Describe a folder with these jsons. Photos without one, points and lines are left out.

    Raises:
        ValueError: If a file cannot be read, or there are no training images.
    """
    left_out: Counter[str] = Counter()
    labels = {path: _read_shapes(path, left_out) for path in jsons}
    dataset = describe_labelled(data, labels)
    dataset.training.left_out += left_out
    return dataset


def _read_shapes(path: Path, left_out: Counter[str]) -> list[Shape]:
    """Read shapes. Those of one label and group are parts of one object."""
    parts: dict[tuple, list[dict]] = {}
    try:
        for number, shape in enumerate(json.loads(path.read_bytes())["shapes"]):
            group = shape.get("group_id")
            key = (shape["label"], number if group is None else f"group {group}")
            if shape.get("shape_type", "polygon") in ("polygon", "rectangle", "circle"):
                parts.setdefault(key, []).append(shape)
            else:
                left_out[f"shapes of the type {shape['shape_type']}"] += 1
        return [_join(str(label), shapes) for (label, _), shapes in parts.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}): expected labelme's shapes") from None


def _join(label: str, shapes: Sequence[dict]) -> Shape:
    """Join polygons, circles (centre and a point of the rim) and rectangles (two corners)."""
    polygons = []
    points_of_all = []
    for shape in shapes:
        points = np.asarray(shape["points"], float).reshape(-1, 2)
        if shape.get("shape_type") == "circle":
            angles = np.linspace(0, tau, 32, endpoint=False)
            rim = np.stack([np.cos(angles), np.sin(angles)], axis=1)
            points = points[0] + rim * np.linalg.norm(points[1] - points[0])
        points_of_all.append(points)
        if shape.get("shape_type") != "rectangle":
            polygons.append(points.ravel().tolist())
    points = np.concatenate(points_of_all)
    box = from_corners([*points.min(axis=0), *points.max(axis=0)])[0]
    return Shape(label, box, polygons if len(polygons) == len(shapes) else [])
