"""A perfect detector in place of a network. It finds each object of a synthetic scene by its color.

Every object that the tiles lose, report twice, cut or join with another object is therefore a fault
of the tiling.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import cv2
import numpy as np
import supervision as sv
from mmengine.config import Config

from xcit_mm.prediction import Prediction
from xcit_mm.prediction.preprocessing import Preprocessing

CLASSES = ("oak", "birch", "fir", "pine")


def class_of(number: int) -> int:
    """Return the class of an object, 0 to 3, equal for most of its neighbours."""
    return number // 100 % 4


class Scene:
    """Objects of several classes, numbered from 1 on, in an array of numbers (H, W), int32."""

    def __init__(self, height: int, width: int) -> None:
        self.numbers = np.zeros((height, width), np.int32)
        self.count = 0

    @property
    def image(self) -> np.ndarray:
        """(H, W, 3), uint8, whose colors are the numbers in base 256."""
        return (self.numbers[..., None] >> np.array([0, 8, 16])).astype(np.uint8)

    def add(self, points: np.ndarray) -> bool:
        """Draw a polygon of (x, y), if it lies in the scene and apart from all objects."""
        points = np.round(points).astype(np.int32)
        (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0) + 1
        if min(left, top) < 0 or bottom > self.numbers.shape[0] or right > self.numbers.shape[1]:
            return False
        shape = np.zeros((bottom - top, right - left), np.uint8)
        inside = cv2.fillPoly(shape, [points - (left, top)], 1) > 0
        window = self.numbers[top:bottom, left:right]
        if window[inside].any():
            return False
        self.count += 1
        window[inside] = self.count
        return True

    def add_random(self, count: int, smallest: float, largest: float, seed: int = 0) -> "Scene":
        """Draw ellipses and rectangles of any angle, whose longer sides have these lengths."""
        rng = np.random.default_rng(seed)
        while self.count < count:
            length = rng.uniform(smallest, largest)
            size = length, length * rng.uniform(0.2, 1)
            centre = rng.uniform(0, self.numbers.shape[::-1])
            angle = rng.uniform(0, 180)
            corners = cv2.boxPoints((centre, size, angle))
            axes = tuple(int(side / 2) for side in size)
            ellipse = cv2.ellipse2Poly(tuple(map(int, centre)), axes, int(angle), 0, 360, 5)
            self.add(ellipse if rng.random() < 0.5 else corners)
        return self

    def add_ships(self, length: float, width: float = 8, gap: float = 3) -> "Scene":
        """Fill the scene with ships at 45 degrees, whose boxes overlap by more than half."""
        along = np.array([1, 1]) / 2**0.5
        across = np.array([1, -1]) / 2**0.5
        reach = sum(self.numbers.shape)
        for start in np.arange(0, reach, length + gap):
            for shift in np.arange(-reach, reach, width + gap):
                stern = start * along + shift * across
                bow = stern + length * along
                self.add(np.array([stern, bow, bow + width * across, stern + width * across]))
        return self


def number_of(image: np.ndarray) -> np.ndarray:
    """Return the number of the object at each pixel of an image (h, w, 3)."""
    return (image.astype(np.int32) << np.array([0, 8, 16], np.int32)).sum(axis=2)


def detect(image: np.ndarray, jitter: float = 0, with_masks: bool = True) -> Prediction:
    """Find every object, and every part that the image's edge cuts, with random scores."""
    numbers = number_of(image)
    found = np.unique(numbers[numbers > 0])
    masks = numbers == found[:, None, None]
    rng = np.random.default_rng(found.sum())
    boxes = sv.mask_to_xyxy(masks).reshape(-1, 4).astype(float)
    boxes[:, 2:] += 1
    boxes += rng.uniform(-jitter, jitter, boxes.shape)
    scores = rng.uniform(0.5, 1, len(found))
    labels = [class_of(number) for number in found]
    return predicted(image, boxes, scores, labels, masks if with_masks else None)


def predicted(
    image: np.ndarray,
    boxes: Any,
    scores: Any,
    labels: Sequence[int],
    masks: np.ndarray | None = None,
) -> Prediction:
    """Return a detector's prediction, in descending order of scores."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    scores = np.array(scores, np.float32)
    detections = sv.Detections(boxes, masks, scores, np.array(labels, int)).to_compact_masks()
    order = np.argsort(-scores, kind="stable")
    return Prediction(image, detections[order], None, CLASSES)


class StandIn:
    """Stands for a `Predictor` of rasters and photos in tiles, and counts the tiles it sees."""

    settings: ClassVar[dict[str, Any]] = {}
    view = None
    arguments = None
    model = SimpleNamespace(backbone=None)

    def __init__(self, scope: str, bands: int = 3, **metainfo: Any) -> None:
        self.metainfo = metainfo
        load = "LoadRasterFromFile" if bands != 3 else "LoadImageFromFile"
        pack = "PackDetInputs" if scope == "mmdet" else "PackSegInputs"
        data = dict(dataset=dict(pipeline=[dict(type=load), dict(type=pack)]))
        model = dict(backbone=dict(in_channels=bands))
        large = dict(scale=1.0)
        cfg = dict(default_scope=scope, model=model, test_dataloader=data, large=large)
        self.cfg = Config(cfg)
        self.preprocess = Preprocessing(self.cfg)
        self.names = metainfo["classes"]
        self.palette = metainfo.get("palette")
        self.seen = 0

    def predict_arrays(self, images, masks, resizes) -> list[Prediction]:
        self.seen += len(images)
        return [self.predict(image) for image in images]


class PerfectDetector(StandIn):
    is_detector = True
    batch_size = 4

    def __init__(self, **options: Any) -> None:
        super().__init__("mmdet", classes=CLASSES)
        self.options = options

    def predict(self, image: np.ndarray) -> Prediction:
        return detect(image, **self.options)


NO_FAULTS: list[str] = []


def judge(scene: Scene, masks: Iterable[np.ndarray], labels: Iterable[int]) -> list[str]:
    """List the objects that masks (H, W), bool, miss, find twice, cut, or join with others."""
    sizes = np.bincount(scene.numbers.ravel(), minlength=scene.count + 1)
    times: Counter[int] = Counter()
    faults = []
    for mask, label in zip(masks, labels, strict=True):
        numbers, counts = np.unique(scene.numbers[mask], return_counts=True)
        number = int(numbers[counts.argmax()])
        assert number and label == class_of(number)
        times[number] += 1
        if counts.tolist() != [sizes[number]]:
            faults.append(f"{number}: {counts} of {sizes[number]} pixels")
    wrong = [number for number in range(1, scene.count + 1) if times[number] != 1]
    return faults + [f"{number}: found {times[number]} times" for number in wrong]
