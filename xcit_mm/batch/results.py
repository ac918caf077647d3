"""Predictions as records, and the files of their visualizations and segmentation maps."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..prediction import Instances, Prediction, Style
from ..prediction.results import encode_instances
from .inputs import Input
from .manifest import LABELS, VISUALIZATIONS
from .run import Run
from .shards import Record

# Masks of an image wait to be written as arrays up to this size, and beyond it in run-length code.
MAX_MASK_BYTES = 2**28
# Adds newly completed inputs or tiles to a progress bar, and shows the number of predicted frames of the current video.
Progress = Callable[[int, int], None]


class ResultWriter:
    """Converts predictions to records, and writes visualizations and segmentation maps; used by several threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._style = Style(run.drawing.alpha, run.drawing.labels, run.drawing.color_by)

    def write_image(self, number: int, size: tuple[int, int], prediction: Prediction | str) -> Record:
        """Write the files of an image (height, width), or take the reason of its failure, and return its record."""
        input_ = self._run.inputs[number]
        record = self._run.record(number)
        if isinstance(prediction, str):
            return record._replace(error=prediction)
        if self._run.drawing.visualize:
            self.write_drawing(input_, prediction)
        return self.fill(record, size, prediction, input_.key)

    def write_drawing(self, input_: Input, prediction: Prediction) -> None:
        """Draw an image, or report why it cannot be drawn."""
        jpeg = try_or_message(lambda: _encode_jpeg(self.draw(prediction)))
        if isinstance(jpeg, str):
            self._run.report(f"not drawn: {input_.path}: {jpeg}")
        else:
            write_file(self._run.out / VISUALIZATIONS / f"{input_.key}.jpg", jpeg)

    def fill(self, record: Record, size: tuple[int, int], prediction: Prediction, key: str) -> Record:
        """Add a prediction to a record. A segmentation map is written to a file unless the format includes it."""
        record = record._replace(height=size[0], width=size[1])
        if prediction.instances is not None:
            return record._replace(**encode_instances(prediction.instances))
        assert prediction.segmentation is not None
        png = cv2.imencode(".png", prediction.segmentation)[1].tobytes()
        if self._run.options.format == "parquet":
            return record._replace(segmentation_map=png)
        write_file(self._run.out / LABELS / f"{key}.png", png)
        return record

    def draw(self, prediction: Prediction) -> np.ndarray:
        """Draw a prediction over its image."""
        return prediction.draw(self._run.drawing.score_thr, self._style)


def map_key(input_: Input, frame: int | None) -> str:
    """Return the path of an image's or frame's segmentation map below its folder, without a suffix."""
    # No folder of images has the name of a video.
    return input_.key if frame is None else f"{input_.key}{Path(input_.path).suffix}/{frame:06}"


def stored_prediction(run: Run, input_: Input, record: Record, image: np.ndarray) -> Prediction:
    """Return the prediction of a stored record, for its image.

    Raises:
        ValueError: If the image has another size.
        OSError: If its segmentation map is missing.
    """
    size, drawing = [record.height, record.width], (run.model.classes, run.model.palette)
    if list(image.shape[:2]) != size:
        raise ValueError(f"the image has {image.shape[0]}x{image.shape[1]} pixels, its prediction {size[0]}x{size[1]}")
    if record.boxes is not None:
        masks = None if record.masks is None else [dict(size=size, counts=code.encode()) for code in record.masks]
        boxes, scores = (np.array(values, np.float32) for values in (record.boxes, record.scores))
        instances = Instances(boxes.reshape(-1, 4), scores, np.array(record.labels, int), masks)
        return Prediction(image, instances, None, *drawing)
    png = record.segmentation_map
    if png is None:
        png = (run.out / LABELS / f"{map_key(input_, record.frame)}.png").read_bytes()
    return Prediction(image, None, cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED), *drawing)


@contextmanager
def thread_queue(pool: ThreadPoolExecutor, consume: Callable[[Any], None]) -> Iterator[Callable[..., None]]:
    """Yield a function that runs calls in threads. `consume` gets their results in the order of the calls.

    At the end of the `with` block, and after Ctrl-C, the pending results are consumed too.
    """
    futures: deque[Future] = deque()

    def consume_until(pending: int) -> None:
        while len(futures) > pending:
            consume(futures.popleft().result())

    def submit(function: Callable, *args: object) -> None:
        futures.append(pool.submit(function, *args))
        consume_until(4)  # each holds an image in memory

    try:
        yield submit
    except KeyboardInterrupt:
        consume_until(0)
        raise
    consume_until(0)


def try_or_message(function: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result, or the `error_message` of its exception."""
    try:
        return function(*args)
    except Exception as error:  # models and pipelines raise many types
        return error_message(error)


def error_message(error: Exception) -> str:
    """Return the message of an input's failure as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _encode_jpeg(image: np.ndarray) -> bytes:
    success, encoded = cv2.imencode(".jpg", image)
    if not success:
        raise ValueError("the image is too large for JPEG")
    return encoded.tobytes()
