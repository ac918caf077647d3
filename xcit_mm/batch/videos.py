"""Prediction of videos: a record for each frame, and a video of the visualizations."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from pathlib import Path

import cv2
import numpy as np

from ..prediction import Prediction, Predictor
from .inputs import Input
from .manifest import VISUALIZATIONS
from .reading import Video
from .results import (
    MAX_MASK_BYTES,
    Progress,
    ResultWriter,
    error_message,
    report_undrawn,
    thread_queue,
    try_or_message,
    write_file,
)
from .run import Run
from .shards import Record, ShardFormat

__all__ = ["DrawnVideo", "VideoPredictor", "map_key"]


class VideoPredictor:
    """Predicts shards of videos."""

    def __init__(self, run: Run, predictor: Predictor, results: ResultWriter, progress: Progress) -> None:
        self.run, self.predictor, self.results, self.progress = run, predictor, results, progress

    def predict(self, shard: int, writer: ShardFormat, pool: ThreadPoolExecutor) -> str | None:
        """Predict a shard, and write a record per frame. After an error, write and return its reason."""
        number = self.run.shards[shard].inputs.start
        input_ = self.run.inputs[number]
        record = self.run.record(number)
        drawn = DrawnVideo(self.run.out / VISUALIZATIONS / f"{input_.key}.mp4", input_)

        def process(frame: int, prediction: Prediction) -> tuple[Record, np.ndarray | str | None]:
            shape, key = prediction.image.shape[:2], map_key(input_, frame)
            filled = self.results.fill(record._replace(frame=frame), shape, prediction, key)
            return filled, try_or_message(self.results.draw, prediction) if self.run.drawing.visualize else None

        def write(result: tuple[Record, np.ndarray | str | None]) -> None:
            filled, image = result
            if image is not None:
                drawn.write(image)
            writer.write(filled)

        error = None
        try:
            with thread_queue(pool, write) as submit:
                for frame, prediction in enumerate(self._predictions(input_.path)):
                    if isinstance(prediction, str):
                        error = prediction
                        break
                    submit(process, frame, prediction)
                    self.progress(0, frame + 1)
        finally:
            drawn.close()
        if error is not None:
            writer.write(record._replace(error=error))
        self.progress(1, 0)
        return error

    def _predictions(self, path: str) -> Iterator[Prediction | str]:
        """Predict the frames of a video; after an error, yield its message."""
        predictor = self.predictor
        try:
            video = Video(path)
            frames = iter(video)
            while batch := list(islice(frames, predictor.batch_size)):
                if predictor.tile is not None:
                    yield from map(predictor, batch)
                else:
                    samples = predictor.predict_preprocessed([predictor.preprocess(frame) for frame in batch])
                    yield from map(predictor.to_prediction, batch, samples, repeat(MAX_MASK_BYTES))
            video.check_end()
        except Exception as error:  # decoders, models and pipelines raise many types
            yield error_message(error)


def map_key(input_: Input, frame: int | None) -> str:
    """Return the path of an image's or frame's segmentation map below its folder, without a suffix."""
    # No folder of images has the name of a video.
    return input_.key if frame is None else f"{input_.key}{Path(input_.path).suffix}/{frame:06}"


class DrawnVideo:
    """MP4 file of visualizations, with the frame rate of its input. The first frame determines its size."""

    def __init__(self, path: Path, input_: Input) -> None:
        self._path, self._input, self._is_drawable = path, input_, True
        self._writer: cv2.VideoWriter | None = None

    def write(self, image: np.ndarray | str) -> None:
        """Add a frame. If it cannot be drawn, for the reason given instead, report it and remove the video."""
        if not self._is_drawable:
            return
        if not isinstance(image, str) and self._writer is None:
            image = self._open(image)
        if isinstance(image, str):
            self._is_drawable = False
            self.close()
            self._path.unlink(missing_ok=True)
            report_undrawn(self._input, image)
        elif self._writer is not None:
            self._writer.write(image)

    def _open(self, image: np.ndarray) -> np.ndarray | str:
        """Open the video, and return its first frame or the reason why it cannot be written."""
        write_file(self._path, b"")  # OpenCV would not report a full disk or a missing permission
        (height, width), rate = image.shape[:2], Video(self._input.path).rate
        self._writer = cv2.VideoWriter(str(self._path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
        is_open = self._writer.isOpened()
        return image if is_open else f"{height}x{width} pixels at {rate:g} frames per second do not fit into an MP4"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()
