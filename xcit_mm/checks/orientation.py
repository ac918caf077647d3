"""Whether labels were drawn over photos as they are stored, or as EXIF turns them.

mmcv turns photos. A photo on its head has the same size, so that the edges in it decide.
"""

from collections.abc import Iterable

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from .masks import is_polygon

_CLEAR = 1.2  # times as strong are the edges at the outlines of labels in the right orientation


def labels_match_stored(pairs: Iterable[tuple[str, np.ndarray]]) -> bool:
    """Return whether labels were clearly drawn over photos as stored, without turning by EXIF.

    Args:
        pairs: Paths of photos that EXIF turns, each with its labels (H, W) as drawn.
    """
    stored = 0.0
    turned = 0.0
    for path, labels in pairs:
        with Image.open(path) as image:
            photo = image.convert("L")  # keeps the EXIF
        stored += _edges_at_outlines(photo, labels)
        turned += _edges_at_outlines(ImageOps.exif_transpose(photo), labels)
    return stored > _CLEAR * turned


def _edges_at_outlines(photo: Image.Image, labels: np.ndarray) -> float:
    """Return how much stronger edges of a photo are at the outlines of labels than elsewhere."""
    pixels = np.asarray(photo, float)
    height, width = np.minimum(pixels.shape, labels.shape)
    pixels = pixels[:height, :width]
    edges = _steps(pixels)
    outlines = _steps(labels[:height, :width].astype(float)) > 0
    if not outlines.any() or not edges.any():
        return 0.0
    return float(edges[outlines].mean() / edges.mean())


def _steps(values: np.ndarray) -> np.ndarray:
    """Return the differences of pixels from their lower and right neighbours (H - 1, W - 1)."""
    down = np.abs(np.diff(values, axis=0))[:, :-1]
    right = np.abs(np.diff(values, axis=1))[:-1]
    return down + right


def draw_objects(annotations: Iterable[dict], shape: tuple[int, int]) -> np.ndarray:
    """Return labels (H, W) of the polygons of COCO annotations, or else of their boxes."""
    labels = Image.new("I", shape[::-1])
    draw = ImageDraw.Draw(labels)
    for number, annotation in enumerate(annotations, start=1):
        polygons = [part for part in annotation.get("segmentation") or () if is_polygon(part)]
        for polygon in polygons:
            draw.polygon(polygon.tolist(), fill=number)
        if not polygons:
            x, y, width, height = annotation["bbox"]
            draw.rectangle((x, y, x + width, y + height), fill=number)
    return np.asarray(labels)
