"""Images of any size whose trunk runs once: neck and heads read its taps window by window."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from ..models.large import Taps, check_trunk, large_taps, pyramid_of
from ..models.xcit import STRIDES
from ..utils.cli import print_line
from .prediction import Prediction
from .tiles import Window, join_tiles, windows

# Windows start at its multiples, so that their cells are those of the image at all strides of
# heads. It is also the margin in which a window sees its neighbours.
CELL = 128  # pixels
# Layers in which a value depends on all of the map.
_GLOBAL_LAYERS = (
    *(nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.MultiheadAttention),
    *(nn.GroupNorm, nn.InstanceNorm2d),
)

# Returns rows of an image, from the first up to the last, as the loading step of the config does,
# (rows, width, channels), and which pixels have data, (rows, width), or None if all have.
ReadPixels = Callable[[int, int], tuple[np.ndarray, np.ndarray | None]]


def check_whole(model: Any) -> None:
    """Raise ValueError if a model cannot predict whole images. A line names heads that see windows
    where they would see the image.
    """
    for part in _parts_in_windows(model):
        print_line(f"{part} pools, attends or norms over a window, not the image")


def is_exact_whole(model: Any) -> bool:
    """Return whether a model predicts a whole image in windows as it would in memory."""
    try:
        return not _parts_in_windows(model)
    except ValueError:
        return False


def _parts_in_windows(model: Any) -> list[str]:
    """List the types of the parts that would see the image and see windows. Raise ValueError if a
    model cannot predict whole images.
    """
    check_trunk(model.backbone)
    if (getattr(model, "test_cfg", None) or {}).get("mode") == "slide":
        raise ValueError("mode='slide' of test_cfg cuts images: set mode='whole' in the config")
    # RoIs are local, and an auxiliary head predicts nothing.
    local = ("backbone", "roi_head", "auxiliary_head")
    return [
        type(part).__name__
        for name, part in model.named_children()
        if name not in local and any(isinstance(layer, _GLOBAL_LAYERS) for layer in part.modules())
    ]


class WholeImage:
    """An image as a model sees it: at the scale of one tile, in windows of the heads.

    Args:
        predictor: `Predictor`, after `check_whole`.
        height, width: Size of the image in pixels.
        tile: Side of what a window of the heads contributes at least, in pixels of the image.
        overlap: Pixels that two windows share at least. It counts as 256 if it is less.

    Attributes:
        size: Height and width of the image as the model sees it.
        scale: `size` as factors of the image's height and width.
        rows, columns: The windows, in pixels as the model sees them.
    """

    def __init__(self, predictor: Any, height: int, width: int, tile: int, overlap: int) -> None:
        self._predictor = predictor
        blank = np.zeros((tile, tile, predictor.preprocess.channels), np.uint8)
        self._sample = predictor.preprocess(blank)["data_samples"]
        factor, height_factor = self._sample.metainfo.get("scale_factor", (1.0, 1.0))
        if factor != height_factor:
            problem = f"the test pipeline stretches {tile} x {tile} pixels"
            raise ValueError(
                f"{problem}: set keep_ratio=True in its Resize, or predict it in tiles"
            )
        self.size = max(1, round(height * factor)), max(1, round(width * factor))
        self.scale = self.size[0] / height, self.size[1] / width
        self.rows, self.columns = (
            _windows_in_cells(length, round(tile * factor), round(overlap * factor))
            for length in self.size
        )
        self._taps: Taps

    def run_trunk(
        self,
        read: ReadPixels,
        folder: Path,
        progress: Callable[[int, int], None] = lambda done, passes: None,
    ) -> None:
        """Compute the taps as `large_taps` does."""
        model: Any = self._predictor.model

        def read_rows(first: int, last: int) -> tuple[Tensor, Tensor | None]:
            pixels, valid = read(first, last)
            sample = self._predictor.preprocess(pixels, resizes=False)
            if sample["inputs"].shape[1:] != pixels.shape[:2]:
                problem = "a step of the test pipeline other than Resize and Pad changes sizes"
                raise ValueError(f"{problem}: remove it, or predict in tiles")
            batch = {name: [value] for name, value in sample.items()}
            inputs = model.data_preprocessor(batch, False)["inputs"][0]
            has_data = None if valid is None else torch.from_numpy(valid)
            return inputs[:, : last - first, : self.size[1]], has_data

        with self._predictor.autocast():
            self._taps = large_taps(
                model.backbone, read_rows, *self.size, folder, progress=progress
            )

    @torch.no_grad()
    def predict(self, row: Window, column: Window) -> Prediction:
        """Predict a window, after `run_trunk`. The prediction has no image."""
        model: Any = self._predictor.model
        size = row.stop - row.start, column.stop - column.start
        height, width = (math.ceil(length / STRIDES[-1]) * STRIDES[-1] for length in size)
        rows = slice(row.start, row.start + height)
        columns = slice(column.start, column.start + width)
        sample = self._sample.clone()
        sample.set_metainfo(
            dict(
                img_shape=size,
                ori_shape=size,
                pad_shape=(height, width),
                batch_input_shape=(height, width),
                # Of left, right, top and bottom: mmseg would stretch logits otherwise.
                padding_size=(0, width - size[1], 0, height - size[0]),
                scale_factor=(1.0, 1.0),
            )
        )
        with self._predictor.autocast():
            maps = pyramid_of(model.backbone, self._taps, rows, columns)
            # Heads take the size of a batch from its images, and no pixels.
            images = maps[0].new_empty(()).expand(1, model.backbone.in_channels, height, width)
            model.backbone.forward = lambda images: maps
            try:
                (predicted,) = model.predict(images, [sample])
            finally:
                del model.backbone.forward
        no_image = np.broadcast_to(np.uint8(0), (*size, 3))
        return self._predictor.to_prediction(no_image, predicted)


def predict_whole(predictor: Any, image: np.ndarray, valid: np.ndarray | None) -> Prediction:
    """Predict an image in memory (H, W, C), of which pixels have data where `valid` (H, W) says so,
    by default everywhere.
    """
    height, width = image.shape[:2]
    whole = WholeImage(predictor, height, width, predictor.tile, predictor.overlap)
    pixels = image
    if whole.size != (height, width):
        size = whole.size[::-1]
        pixels = cv2.resize(image, size)
        if valid is not None:
            valid = cv2.resize(valid.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        return pixels[first:last], None if valid is None else valid[first:last]

    with TemporaryDirectory() as folder:
        whole.run_trunk(read, Path(folder))
        places = product(whole.rows, whole.columns)
        predictions = ((place, whole.predict(*place)) for place in places)
        return join_tiles(image, predictions, whole.scale)


def _windows_in_cells(length: int, tile: int, overlap: int) -> list[Window]:
    """Spread windows of a tile and its margins over an axis, from cell to cell."""
    shared = max(2, math.ceil(overlap / CELL))
    side = max(math.ceil(tile / CELL), 1) + 2
    spread = []
    for window in windows(math.ceil(length / CELL), side, shared):
        ends = (window.inside.start, window.inside.stop)
        inside = slice(*(min(end * CELL, length) for end in ends))
        stop = min(window.stop * CELL, length)
        start = window.start * CELL
        spread.append(Window(start, stop, inside, window.margin * CELL, window.edges))
    return spread
