"""Prediction of videos: a record for each frame, and a video of the visualizations."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from ..prediction.predictor import Prediction, Predictor
from .reading import Video
from .results import Progress, ResultWriter, error_message, thread_queue, try_or_message, write_file
from .run import VISUALIZATIONS, Run
from .shards import Record, ShardFormat

__all__ = ["VideoPredictor"]


class VideoPredictor:
    """Predicts shards of videos."""

    def __init__(self, run: Run, predictor: Predictor, results: ResultWriter, progress: Progress) -> None:
        self.run, self.predictor, self.results, self.progress = run, predictor, results, progress

    def predict(self, shard: int, writer: ShardFormat, pool: ThreadPoolExecutor) -> str | None:
        """Predict a shard, and write a record per frame. After an error, write and return its reason."""
        number = self.run.shards[shard].inputs.start
        input_ = self.run.inputs[number]
        record = Record(number, input_.path, input_.name, input_.image_id)
        drawn = _DrawnVideo(self.run.out / VISUALIZATIONS / f"{input_.key}.mp4", input_.path)

        def process(frame: int, prediction: Prediction) -> tuple[Record, np.ndarray | str | None]:
            # No folder has the name of a video file, so the maps of frames and images have different paths.
            key = f"{input_.name}/{frame:06}"
            filled = self.results.fill(record._replace(frame=frame), prediction.image.shape[:2], prediction, key)
            visualize = self.run.options.visualize
            return filled, try_or_message(self.results.draw, prediction) if visualize else None

        def write(result: tuple[Record, np.ndarray | str | None]) -> None:
            filled, image = result
            if isinstance(image, str):
                raise _NotDrawable(image)
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
        except _NotDrawable as reason:
            error = f"visualization: {reason}"
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
                    yield from map(predictor.predict, batch)
                else:
                    samples = predictor.predict_preprocessed([predictor.preprocess(frame) for frame in batch])
                    yield from map(predictor.to_prediction, batch, samples)
            video.check_end()
        except Exception as error:  # decoders, models and pipelines raise many types
            yield error_message(error)


class _DrawnVideo:
    """MP4 file of visualizations, with the frame rate of the video at `source`. The first frame determines its size."""

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self._writer: cv2.VideoWriter | None = None

    def write(self, image: np.ndarray) -> None:
        if self._writer is None:
            write_file(self._path, b"")  # OpenCV would not report a full disk or a missing permission
            (height, width), rate = image.shape[:2], Video(self._source).rate
            self._writer = cv2.VideoWriter(str(self._path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
            if not self._writer.isOpened():
                raise _NotDrawable(f"{height}x{width} pixels at {rate:g} frames per second do not fit into an MP4")
        self._writer.write(image)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()


class _NotDrawable(Exception):
    """Error of frames that cannot be drawn, or not be written to a video."""
