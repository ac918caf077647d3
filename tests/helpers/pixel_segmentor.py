"""A segmentor in place of a network, whose class is a function of each pixel."""

import numpy as np

from helpers.perfect_detector import StandIn
from xcit_mm.prediction import Prediction

CLASSES = ["road", "<house>", "Bäume"]
PALETTE = [[128, 64, 128], [70, 70, 70], [107, 142, 35]]


class PixelSegmentor(StandIn):
    is_detector = False
    batch_size = 2

    def __init__(self, classes: list[str] = CLASSES, bands: int = 3) -> None:
        super().__init__("mmseg", bands, classes=classes, palette=PALETTE)

    def predict(self, image: np.ndarray) -> Prediction:
        return Prediction(image, None, self.classes_of(image), self.metainfo["classes"])

    def classes_of(self, image: np.ndarray) -> np.ndarray:
        """Return the sum of the bands modulo the number of classes."""
        count = len(self.metainfo["classes"])
        dtype = np.uint8 if count <= 256 else np.uint16
        return (image.sum(axis=2, dtype=int) % count).astype(dtype)
