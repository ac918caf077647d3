"""A segmentor in place of a network, whose class is a function of each pixel."""

from typing import Any, ClassVar

import numpy as np
from mmengine.config import Config

from xcit_mm.prediction import Prediction

CLASSES = ["road", "<house>", "Bäume"]
PALETTE = [[128, 64, 128], [70, 70, 70], [107, 142, 35]]


class PixelSegmentor:
    """Stands for a `Predictor` of rasters."""

    is_detector = False
    tile = None
    overlap = 0
    batch_size = 2
    min_score = None
    arguments = None
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, classes: list[str] = CLASSES, bands: int = 3) -> None:
        self.metainfo = dict(classes=classes, palette=PALETTE)
        self.seen = 0  # tiles
        steps = [dict(type="LoadRasterFromFile")] if bands != 3 else []
        model = dict(backbone=dict(in_channels=bands))
        self.cfg = Config(dict(model=model, test_dataloader=dict(dataset=dict(pipeline=steps))))

    def __call__(
        self, images: list[np.ndarray], valid: list[np.ndarray] | None = None
    ) -> list[Prediction]:
        self.seen += len(images)
        classes = self.metainfo["classes"]
        return [Prediction(image, None, self.classes_of(image), classes) for image in images]

    def classes_of(self, image: np.ndarray) -> np.ndarray:
        """Return the sum of the bands modulo the number of classes."""
        count = len(self.metainfo["classes"])
        dtype = np.uint8 if count <= 256 else np.uint16
        return (image.sum(axis=2, dtype=int) % count).astype(dtype)
