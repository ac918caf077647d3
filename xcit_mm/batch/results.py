"""Predictions as records, and the files of their visualizations and segmentation maps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..prediction.drawing import draw_instances, draw_segmentation_map
from ..prediction.predictor import Prediction, Predictor
from ..prediction.results import encode_masks
from .run import LABELS, VISUALIZATIONS, Run
from .shards import Record

__all__ = ["ResultWriter", "error_message", "try_or_message", "write_file"]


class ResultWriter:
    """Converts predictions to records, and writes visualizations and segmentation maps; used by several threads.

    Args:
        run: The run.
        predictor: Model of the run.
    """

    def __init__(self, run: Run, predictor: Predictor) -> None:
        self._run = run
        self._drawing = predictor.metainfo["classes"], predictor.metainfo.get("palette"), run.options.style

    def write_image(self, number: int, size: tuple[int, int], prediction: Prediction | str) -> Record:
        """Write the files of an image, and return its record.

        Args:
            number: Index of the input.
            size: Height and width of the image.
            prediction: Prediction, or the reason of a failure.
        """
        input_ = self._run.inputs[number]
        record = Record(number, input_.path, input_.name, input_.image_id)
        if isinstance(prediction, str):
            return record._replace(error=prediction)
        if self._run.options.visualize:
            jpeg = try_or_message(lambda: _encode_jpeg(self.draw(prediction)))
            if isinstance(jpeg, str):
                return record._replace(error=f"visualization: {jpeg}")
            write_file(self._run.out / VISUALIZATIONS / f"{input_.key}.jpg", jpeg)
        return self.fill(record, size, prediction, input_.key)

    def fill(self, record: Record, size: tuple[int, int], prediction: Prediction, key: str) -> Record:
        """Add a prediction to a record. A segmentation map is written to a file unless the format includes it."""
        record = record._replace(height=size[0], width=size[1])
        if prediction.instances is not None:
            boxes, scores, labels, _ = prediction.instances
            codes = encode_masks(prediction.instances)
            return record._replace(boxes=boxes.tolist(), scores=scores.tolist(), labels=labels.tolist(), masks=codes)
        assert prediction.labels is not None  # of a segmentor
        png = cv2.imencode(".png", prediction.labels)[1].tobytes()
        if self._run.options.format == "parquet":
            return record._replace(segmentation_map=png)
        write_file(self._run.out / LABELS / f"{key}.png", png)
        return record

    def draw(self, prediction: Prediction) -> np.ndarray:
        """Draw a prediction over its image."""
        if prediction.instances is not None:
            instances = prediction.instances.above(self._run.options.score_thr)
            return draw_instances(prediction.image, instances, *self._drawing)
        assert prediction.labels is not None
        return draw_segmentation_map(prediction.image, prediction.labels, *self._drawing)


def try_or_message(function: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result, or the `error_message` of its exception."""
    try:
        return function(*args)
    except Exception as error:  # models and pipelines raise many types
        return error_message(error)


def error_message(error: Exception) -> str:
    """Return the message of an input's failure as one line.

    Raises:
        RuntimeError: If a process that reads images was killed. torch raises this error wherever the main process is.
    """
    if str(error).startswith("DataLoader worker"):
        raise error
    return " ".join(str(error).split()) or type(error).__name__


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _encode_jpeg(image: np.ndarray) -> bytes:
    success, encoded = cv2.imencode(".jpg", image)
    if not success:
        raise ValueError("the image is too large for JPEG")
    return encoded.tobytes()
