"""A large image that a predictor sees once, to predict any part of it; and one in tiles."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np

from ..models.windows import Window, tiles_along
from .joining import Part, join
from .prediction import Prediction
from .sources import Source
from .view import View

# Rows and columns of windows.
Places: TypeAlias = Iterable[tuple[Window, Window]]
# Says which pixels of a window are asked for, (h, w), bool.
Mask: TypeAlias = Callable[[Window, Window], np.ndarray]


class Seen(ABC):
    """An image that a predictor sees. Between `__enter__` and `__exit__` it predicts windows.

    Args:
        predictor: `Predictor`.
        source: The image.
        view: How the predictor sees it.

    Attributes:
        source: The image as the model sees it.
        scale: Factors of height and width from the image to `source`.
    """

    def __init__(self, predictor: Any, source: Source, view: View) -> None:
        self._predictor = predictor
        self._image = source
        self._view = view
        sides = source.height, source.width
        height, width = (max(1, round(side * view.scale)) for side in sides)
        self.source = source if (height, width) == sides else source.resampled(height, width)
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
        rows, seen_rows = _part_of(rows, self._image.height, self.scale[0])
        columns, seen_columns = _part_of(columns, self._image.width, self.scale[1])
        parts = self.parts(product(self.spread(0, seen_rows), self.spread(1, seen_columns)))
        image, _ = self._image.read(rows, columns)
        corner = rows.start, columns.start
        return join(parts, image, corner, self.scale, self._predictor)

    def spread(self, axis: int, span: slice | None = None) -> list[Window]:
        """Divide an axis of `source`, or a span of it, into tiles or windows.

        Args:
            axis: 0 for rows, 1 for columns.
        """
        length = (self.source.height, self.source.width)[axis]
        return self._spread(length, span or slice(0, length))

    def parts(self, places: Places, mask: Mask | None = None) -> Iterator[Part]:
        """Predict the windows at places that have data inside the mask, by default any data."""
        if not self._is_open:
            raise ValueError("the image is closed: predict inside the block `with ... as seen:`")
        return self._predict_windows(places, mask)

    def _read(
        self, places: Places, mask: Mask | None
    ) -> Iterator[tuple[Window, Window, np.ndarray, np.ndarray]]:
        """Read the windows at places, and leave out those without data that is asked for.

        Yields:
            Rows, columns, pixels, and which pixels have data.
        """
        for rows, columns in places:
            image, valid = self.source.read(rows.span, columns.span)
            wanted = valid if mask is None else valid & mask(rows, columns)
            if wanted.any():
                yield rows, columns, image, valid

    @abstractmethod
    def _spread(self, length: int, span: slice) -> list[Window]: ...

    @abstractmethod
    def _predict_windows(self, places: Places, mask: Mask | None) -> Iterator[Part]: ...


def _part_of(part: slice, side: int, factor: float) -> tuple[slice, slice]:
    """Return the pixels of a part of an axis, and those that show their centres to the model."""
    start, stop, step = part.indices(side)
    if step != 1 or start >= stop:
        raise ValueError(f"{part} of {side} pixels: give a part of them")
    first, last = (math.floor((pixel + 0.5) * factor) for pixel in (start, stop - 1))
    return slice(start, stop), slice(first, last + 1)


class InTiles(Seen):
    """An image in tiles, each of which the model sees alone."""

    def _spread(self, length: int, span: slice) -> list[Window]:
        cut = []
        for tile in tiles_along(length, self._view.side, self._view.overlap):
            inside = slice(max(tile.inside.start, span.start), min(tile.inside.stop, span.stop))
            if inside.start < inside.stop:
                cut.append(tile._replace(inside=inside))
        return cut

    def _predict_windows(self, places: Places, mask: Mask | None) -> Iterator[Part]:
        tiles = self._read(places, mask)
        while batch := list(islice(tiles, self._predictor.batch_size)):
            _, _, images, masks = zip(*batch, strict=True)
            predictions = self._predictor.predict_arrays(images, masks, resizes=False)
            for (rows, columns, _, valid), prediction in zip(batch, predictions, strict=True):
                yield Part(rows, columns, prediction, valid)
