"""How a model sees a large image: at which scale, whole or in tiles, in which windows."""

import math
from typing import Any, NamedTuple

from mmengine.config import Config

from ..models.large_heads import pooled_head
from ..models.windows import CELL, check_overlap
from ..utils.errors import ArgumentError
from ..utils.model_input import ModelInput
from .preprocessing import Preprocessing

# Side of what a window of a segmentor's neck and head adds to the result, in pixels. UPerHead's
# maps of 2,048 channels need three times the memory of Semantic FPN's.
WINDOW = 1024
WINDOW_OF_POOLS = 768

_PHOTO = (480, 640)  # pixels


class View(NamedTuple):
    """How a model sees a large image.

    Attributes:
        scale: Factor by which an image is resized.
        whole: Whether the trunk sees the image whole, and neck and heads in windows. Otherwise the
            model sees it in tiles.
        side: Side of a tile, or of what a window adds to the result, in pixels as the model sees
            them.
        overlap: Minimum width that two tiles or windows share, in pixels as the model sees them.
    """

    scale: float
    whole: bool
    side: int
    overlap: int

    @property
    def settings(self) -> dict[str, Any]:
        """What determines predictions, as plain values."""
        side = "window" if self.whole else "tile"
        return {side: self.side, "whole": self.whole, "scale": self.scale, "overlap": self.overlap}

    def __str__(self) -> str:
        seen = f"seen at scale {self.scale:.3g}"
        if self.whole:
            return f"{seen}, in windows of {self.side} pixels"
        return f"{seen}, in tiles of {self.side / self.scale:.0f} pixels"


def choose_view(
    predictor: Any,
    whole: bool,
    *,
    scale: float | None = None,
    tile: int | None = None,
    overlap: int | None = None,
    window: int | None = None,
) -> View:
    """Decide how a predictor sees a large image.

    Args:
        predictor: `Predictor`.
        whole: As in `View`.
        scale: Default: `large = dict(scale=...)` in the config, or the factor by which the test
            pipeline resizes the tiles of the training, or all images.
        tile: Side of a tile in pixels of the image. Default: that of the images in training.
        overlap: In pixels of the image. Default: a quarter of the tile; for windows 256 pixels. The
            windows of a segmentor ignore it.
        window: Side of what a window adds, in pixels as the model sees them. Default: 1024, or 768
            if the head pools over the image; for a detector, the side of the images in training.

    Raises:
        ArgumentError: If an option does not fit, or no scale is known.
        ValueError: If the test pipeline stretches images.
    """
    scale = _choose_scale(predictor.cfg, predictor.preprocess, scale)
    side = ModelInput(predictor.cfg).side
    if whole:
        if tile is not None:
            raise ArgumentError("tile", f"{tile} is not for whole images: leave it out")
        if window is not None and window < 1:
            raise ArgumentError("window", f"{window} pixels: must be positive")
        if predictor.is_detector:
            return View(scale, whole, window or side or WINDOW, round((overlap or 0) * scale))
        default = WINDOW if pooled_head(predictor.model) is None else WINDOW_OF_POOLS
        return View(scale, whole, window or default, 2 * CELL)
    if window is not None:
        raise ArgumentError("window", f"{window} is for whole images: give tile, or set whole")
    if tile is None:
        if side is None:
            raise ArgumentError("tile", "the config has no size of images: give the side of a tile")
        tile = round(side / scale)
    overlap = tile // 4 if overlap is None else overlap
    check_overlap(tile, overlap)
    seen_tile = max(1, round(tile * scale))
    return View(scale, whole, seen_tile, min(round(overlap * scale), seen_tile - 1))


def _choose_scale(cfg: Config, preprocess: Preprocessing, scale: float | None) -> float:
    """Return the given scale, the one in a config, or the scale of its training images.

    Raises:
        ArgumentError: If it is not positive or not known.
        ValueError: If the test pipeline stretches images.
    """
    tile = (cfg.get("raster") or {}).get("tile")
    height, width = (tile, tile) if tile else _PHOTO
    trained = trained_scale(preprocess, (height, width))
    if scale is None:
        scale = (cfg.get("large") or {}).get("scale")
    if scale is not None:
        if scale <= 0:
            raise ArgumentError("scale", f"{scale}: must be positive")
        return scale
    of_larger = trained_scale(preprocess, (2 * height, 2 * width))
    # Factors differ a little, since sizes are rounded to pixels.
    if not tile and not math.isclose(of_larger, trained, rel_tol=0.01):
        problem = "the config has no large = dict(scale=...), the scale of the training images"
        seen = f"the test pipeline resizes {width} x {height} pixels by {trained:.3g}"
        raise ArgumentError("scale", f"{problem}; {seen}: give {trained:.3g}")
    return trained


def trained_scale(preprocess: Preprocessing, size: tuple[int, int]) -> float:
    """Return the factor by which a test pipeline resizes an image of this height and width.

    Raises:
        ValueError: If the pipeline stretches images.
    """
    height, width = size
    seen_height, seen_width = preprocess.resized_shape(height, width)
    factor = seen_width / width
    if abs(factor * height / seen_height - 1) > 0.02:  # sizes are rounded to pixels
        problem = f"the test pipeline stretches images of {width} x {height} pixels"
        raise ValueError(f"{problem}: set keep_ratio=True in its Resize")
    return factor
