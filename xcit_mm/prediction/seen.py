"""A large image that a predictor sees once, to predict any part of it; and one in tiles."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np

from ..models.windows import Window, tiles_along, windows_along
from .joining import Part, join_detections, join_labels
from .prediction import Prediction, label_type
from .sources import Source
from .view import View

# Rows and columns of windows.
Places: TypeAlias = Iterable[tuple[Window, Window]]


class Seen(ABC):
    """An image that a predictor sees. Between `__enter__` and `__exit__` it predicts windows.

    Args:
        predictor: `Predictor`.
        source: The image.
        view: How the predictor sees it.

    Attributes:
        predictor, source, view: As given.
        resized: The image as the model sees it.
        scale: Factors of height and width from `source` to `resized`.
    """

    def __init__(self, predictor: Any, source: Source, view: View) -> None:
        self.predictor = predictor
        self.source = source
        self.view = view
        sides = source.height, source.width
        height, width = (max(1, round(side * view.scale)) for side in sides)
        self.resized = source if (height, width) == sides else source.resampled(height, width)
        self.scale = height / sides[0], width / sides[1]
        self._is_open = False

    def __enter__(self) -> "Seen":
        self._block = self._seeing()
        self._block.__enter__()
        self._is_open = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._is_open = False
        self._block.__exit__(*error)

    @contextmanager
    def _seeing(self) -> Iterator[None]:
        """Hold what windows are predicted from."""
        yield

    def result(self) -> Prediction:
        """Predict all of the image."""
        return self.predict(slice(None), slice(None))

    def predict(self, rows: slice, columns: slice) -> Prediction:
        """Predict a part of the image.

        Args:
            rows, columns: In pixels of the image, without steps.

        Returns:
            The prediction of the part. Its image is the part. Its objects are those with their
            centre in the part, cut to it.

        Raises:
            ValueError: If the part is empty, or the block of `see` has ended.
        """
        rows = _checked(rows, self.source.height)
        columns = _checked(columns, self.source.width)
        height, width = self.scale
        seen_rows = self.spread(0, _span_of(rows, height))
        seen_columns = self.spread(1, _span_of(columns, width))
        parts = self.parts(product(seen_rows, seen_columns))
        image, _ = self.source.read(rows, columns)
        names = self.predictor.names
        detections = labels = None
        if self.predictor.is_detector:
            detections = join_detections(parts, rows, columns, self.scale)
        else:
            labels = np.zeros(image.shape[:2], label_type(names))
            join_labels(labels, parts, rows, columns, self.scale)
        return Prediction(image, detections, labels, names, self.predictor.palette)

    def spread(self, axis: int, span: slice | None = None) -> list[Window]:
        """Divide an axis of the image into tiles or windows, in pixels as the model sees them.

        Args:
            axis: 0 for rows, 1 for columns.
            span: The part of the axis in which interiors are wanted. Default: all.
        """
        length = (self.resized.height, self.resized.width)[axis]
        span = span or slice(0, length)
        side = self.view.side
        overlap = self.view.overlap
        if self.view.whole:
            return windows_along(span, length, side, overlap)
        return [
            tile
            for tile in tiles_along(length, side, overlap)
            if tile.inside.start < span.stop and span.start < tile.inside.stop
        ]

    def parts(self, places: Places) -> Iterator[Part]:
        """Predict the windows at places that have data."""
        if not self._is_open:
            raise ValueError("the image is closed: predict inside the block `with ... as seen:`")
        return self._predict_windows(places)

    def _read(self, places: Places) -> Iterator[tuple[Window, Window, np.ndarray, np.ndarray]]:
        """Read the windows at places, and leave out those without data.

        Yields:
            Rows, columns, pixels, and which pixels have data.
        """
        for rows, columns in places:
            image, valid = self.resized.read(rows.span, columns.span)
            if valid.any():
                yield rows, columns, image, valid

    @abstractmethod
    def _predict_windows(self, places: Places) -> Iterator[Part]: ...


def _checked(part: slice, side: int) -> slice:
    """Return a part of an axis as a slice with a start and a stop, or raise ValueError."""
    start, stop, step = part.indices(side)
    if step != 1 or start >= stop:
        raise ValueError(f"{part} of {side} pixels: give a part inside them, without a step")
    return slice(start, stop)


def _span_of(pixels: slice, factor: float) -> slice:
    """Return the span of what the model sees that holds the centres of pixels of the image."""
    first, last = (math.floor((pixel + 0.5) * factor) for pixel in (pixels.start, pixels.stop - 1))
    return slice(first, last + 1)


class InTiles(Seen):
    """An image in tiles, each of which the model sees alone."""

    def _predict_windows(self, places: Places) -> Iterator[Part]:
        tiles = self._read(places)
        while batch := list(islice(tiles, self.predictor.batch_size)):
            _, _, images, masks = zip(*batch, strict=True)
            predictions = self.predictor.predict_arrays(images, masks, resizes=False)
            for (rows, columns, _, valid), prediction in zip(batch, predictions, strict=True):
                yield Part(rows, columns, prediction, valid)
