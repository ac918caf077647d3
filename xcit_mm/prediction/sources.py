"""Where the pixels of a large image come from: an array in memory, or a raster."""

from typing import Any, Protocol
from zlib import crc32

import cv2
import numpy as np


class Source(Protocol):
    """Pixels of an image, read by windows. `Raster` of xcit_mm.rasters is one too.

    Attributes:
        height, width: Size in pixels.
    """

    height: int
    width: int

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Read a window.

        Args:
            rows, columns: In pixels, with a start and a stop inside the image and without a step.

        Returns:
            The pixels as the loading step of the config gives them, (h, w, channels), and which of
            them have data, (h, w), bool.
        """
        ...

    def resampled(self, height: int, width: int) -> "Source":
        """Return the same image in another size."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Return plain values that identify the image."""
        ...


def check_mask(valid: np.ndarray, image: np.ndarray) -> None:
    """Raise ValueError unless a mask of an image is bool and has its size."""
    if valid.dtype != bool or valid.shape != image.shape[:2]:
        problem = f"a mask of {valid.dtype}, {valid.shape}, for an image of {image.shape[:2]}"
        raise ValueError(f"{problem}: give bool, (H, W)")


class ImageSource:
    """An image in memory.

    Args:
        image: (H, W, C), with at least one pixel.
        valid: Which pixels have data, (H, W), bool. Default: all.

    Raises:
        ValueError: If the mask has another size or type.
    """

    def __init__(self, image: np.ndarray, valid: np.ndarray | None = None) -> None:
        self.height, self.width = image.shape[:2]
        if valid is not None:
            check_mask(valid, image)
        self._image = image
        self._valid = np.broadcast_to(True, image.shape[:2]) if valid is None else valid

    def read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        return self._image[rows, columns], self._valid[rows, columns]

    def fingerprint(self) -> dict[str, Any]:
        checksum = 0
        for array in (self._image, self._valid):
            checksum = crc32(np.ascontiguousarray(array).data, checksum)
        return dict(pixels=checksum, size=self._image.shape)

    def resampled(self, height: int, width: int) -> "ImageSource":
        image = self._image
        if image.dtype != np.uint8:  # OpenCV resizes few types
            image = image.astype(np.float32)
        image = cv2.resize(image, (width, height)).reshape(height, width, -1)
        if self._valid.all():
            return ImageSource(image)
        # A pixel into which one without data is mixed has no data.
        share = cv2.resize(self._valid.astype(np.float32), (width, height))
        return ImageSource(image, share > 1 - 1e-5)
