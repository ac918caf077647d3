"""Whether labels were drawn over photos as stored, though EXIF turns them: a photo on its head has
the same size, so that only the edges in it tell.
"""

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageOps

from .findings import Finding, note
from .photos import STORED, Photos, sample

_CLEAR = 1.2  # times as strong are the edges at the outlines of labels in the right orientation


def check_orientation(
    code: str, photos: Photos, draw: Callable[[str], np.ndarray]
) -> Iterator[Finding]:
    """Compare labels with the edges of photos that EXIF turns without a change of their size.

    Args:
        draw: Function of a photo's path that returns its labels (H, W).
    """
    infos = photos.infos
    same = [
        path
        for path in sorted(photos.turned)
        if infos[path].shape(True) == infos[path].shape(False)
    ]
    stored = 0.0
    turned = 0.0
    for path in sample(same):
        labels = draw(path)
        with Image.open(path) as image:
            photo = image.convert("L")  # keeps the EXIF
        stored += _edges_at_outlines(photo, labels)
        turned += _edges_at_outlines(ImageOps.exif_transpose(photo), labels)
    if stored > _CLEAR * turned:
        problem = f"labels of {len(same)} photos, such as {same[0]}"
        yield note(code, f"{problem}, seem drawn as stored, but mmcv turns photos by EXIF", STORED)


def _edges_at_outlines(photo: Image.Image, labels: np.ndarray) -> float:
    """Return how much stronger edges of a photo are at the outlines of labels than elsewhere."""
    edges = np.hypot(*np.gradient(np.asarray(photo, float)))
    is_outline = np.hypot(*np.gradient(labels.astype(float))) > 0
    if edges.shape != is_outline.shape or not is_outline.any() or not edges.any():
        return 0.0
    return float(edges[is_outline].mean() / edges.mean())
