"""Files that take pictures, beside torch with the config's own pipeline."""

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS

from ..prediction.predictor import Predictor
from ..prediction.results import Instances
from ..utils.configs import read_config
from .evaluation import file_input
from .preprocessing import prepare_graph
from .run import Detections, Model, Segmentation

__all__ = ["Moved", "Tally", "check_pictures", "compare_detections", "tested_paths"]

PICTURES = 8  # of the test set
MADE = ((203, 330), (480, 320), (97, 128))  # heights and widths
GREY_LEVEL = 1.001  # float32's rounding included
MOVED = 0.02  # of the pixels
LOST = 0.5  # of the detections; few are compared, and what lies at the padding moves, but a wrong scale loses them all
SCORE = 0.3  # of detections that must have a counterpart


class Moved(NamedTuple):
    """How far predictions of a file that prepares pictures are from those of torch, where OpenCV prepares them.

    Attributes:
        pictures: Which were compared.
        grey_levels: Largest deviation of a prepared picture.
        compared: How many pixels, or detections of a score from 0.3, those of the file and of torch.
        share: Of the pixels, those of another class; of the detections, those without a counterpart of their class
            that they overlap by half (IoU).
        shift: Largest distance of a side of a box from its counterpart's, in pixels; None of a segmentor.
    """

    pictures: str
    grey_levels: float
    compared: int
    share: float
    shift: float | None


def check_pictures(path: Path, config: str, checkpoint: str) -> Moved:
    """Compare a file that takes pictures with torch, on images of the config's test set or, without these, made ones.

    Raises:
        RuntimeError: If a prepared picture deviates by more than a grey level, more than a fiftieth of the pixels are
            of another class, or more than half of the detections have no counterpart.
    """
    import onnx
    from onnxruntime import InferenceSession

    predictor, model = Predictor(config, checkpoint, device="cpu"), Model(path)
    prepare = InferenceSession(prepare_graph(onnx.load(path)).SerializeToString(), providers=["CPUExecutionProvider"])
    images = [mmcv.imread(path) for path in tested_paths(read_config(config, []))]
    name = f"{len(images)} images of the test set" if images else f"{len(MADE)} generated pictures"
    grey_levels, tally = 0.0, Tally()
    for image in images or _made_images():
        picture = np.ascontiguousarray(image[..., ::-1])
        (prepared,) = prepare.run(["image"], dict(picture=picture))
        grey_levels = max(_grey_levels(prepared, predictor, image), grey_levels)
        if not grey_levels <= GREY_LEVEL:
            raise RuntimeError(f"a picture prepared in the file deviates by {grey_levels:.1f} grey levels")
        found, expected = model(picture), predictor.predict(image)
        if isinstance(found, Segmentation):
            tally.add_pixels(found.labels != expected.labels)
        else:
            assert expected.instances is not None
            tally.add_detections(found, expected.instances)
    if tally.exceeds(LOST):
        raise RuntimeError(f"{tally.share:.1%} is found differently where pictures are prepared in the file")
    return Moved(name, grey_levels, tally.compared, tally.share, tally.shift)


def tested_paths(cfg: Config) -> list[str]:
    """The first images of a config's test set; none if it is not there."""
    try:
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
    except FileNotFoundError:
        return []
    paths = [dataset.get_data_info(number)["img_path"] for number in range(min(PICTURES, len(dataset)))]
    return [path for path in paths if Path(path).is_file()]


def _made_images() -> list[np.ndarray]:
    """Coloured clouds, (H, W, 3), BGR, uint8."""
    random = np.random.default_rng(0)
    grids = (random.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in MADE)
    return [cv2.resize(grid, size[::-1], interpolation=cv2.INTER_CUBIC) for grid, size in zip(grids, MADE, strict=True)]


def _grey_levels(prepared: np.ndarray, predictor: Predictor, image: np.ndarray) -> float:
    """Largest deviation of a prepared image from what the config's pipeline and data preprocessor give."""
    preprocessor: Any = predictor.model.data_preprocessor
    data = preprocessor(pseudo_collate([predictor.preprocess(image)]), False)
    expected = file_input(data, predictor.is_detector).numpy()
    if prepared.shape != expected.shape:
        raise RuntimeError(f"a picture prepared in the file is {prepared.shape}, not {expected.shape}")
    unit = preprocessor.std.numpy() if preprocessor._enable_normalize else 1
    return float((np.abs(prepared - expected) * unit).max())


class Tally:
    """How much of what is found in several images is found differently by another file.

    Attributes:
        compared: Pixels, or detections of a score from `SCORE`, those of either side.
        shift: Largest distance of a side of a box from its counterpart's, in pixels; None of pixels.
    """

    def __init__(self) -> None:
        self.compared = self._otherwise = 0
        self.shift: float | None = None

    def add_pixels(self, differ: np.ndarray) -> None:
        """Add an image by its pixels, true where the class is another."""
        self.compared += differ.size
        self._otherwise += int(differ.sum())

    def add_detections(self, found: Detections, expected: Detections | Instances) -> None:
        """Add an image by its detections; a counterpart is of the same class and overlaps by half."""
        lost, count, shift = compare_detections(found, expected)
        self.compared += count
        self._otherwise += lost
        self.shift = max(shift, self.shift or 0.0)

    @property
    def share(self) -> float:
        """Of the pixels, those of another class; of the detections, those without a counterpart."""
        return self._otherwise / max(self.compared, 1)

    def exceeds(self, lost: float) -> bool:
        """Whether the share is too large: of pixels a fiftieth, of detections `lost`."""
        return self.share > (MOVED if self.shift is None else lost)


def compare_detections(found: Detections, expected: Detections | Instances) -> tuple[int, int, float]:
    """How many detections have no counterpart, of how many; and the largest shift of a side of the others."""
    from mmdet.structures.bbox import bbox_overlaps

    overlaps = bbox_overlaps(*(torch.from_numpy(one.boxes).float() for one in (found, expected))).numpy()
    overlaps[found.labels[:, None] != expected.labels] = 0
    sure, surely = found.scores >= SCORE, expected.scores >= SCORE
    lost = (overlaps[sure].max(axis=1, initial=0) < 0.5).sum() + (
        overlaps[:, surely].max(axis=0, initial=0) < 0.5
    ).sum()
    pairs = [
        (overlaps[:, one].argmax(), one) for one in np.flatnonzero(surely) if overlaps[:, one].max(initial=0) >= 0.5
    ]
    shift = max((float(np.abs(found.boxes[a] - expected.boxes[b]).max()) for a, b in pairs), default=0.0)
    return int(lost), int(sure.sum() + surely.sum()), shift
