"""Prediction of videos: a record for each frame, and a video of the visualizations."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..prediction import Prediction, Predictor
from .inputs import Input
from .manifest import SHARDS, VISUALIZATIONS
from .reading import Video
from .results import (
    MAX_MASK_BYTES,
    Progress,
    ResultWriter,
    error_message,
    map_key,
    stored_prediction,
    thread_queue,
    try_or_message,
    write_file,
)
from .run import Run
from .shards import DamagedShard, Record, ShardFormat, read_records, write_records

CHUNK_FRAMES = 64  # or the next multiple of the batch size


_Call = tuple[Callable[..., Any], Record, Any]  # a function of a thread, and its arguments


class VideoPredictor:
    """Predicts shards of videos. The records of a chunk of frames are stored, so that a killed run resumes after it."""

    def __init__(self, run: Run, predictor: Predictor, results: ResultWriter, progress: Progress) -> None:
        self.run, self.predictor, self.results, self.progress = run, predictor, results, progress

    def predict(self, shard: int, writer: ShardFormat, pool: ThreadPoolExecutor) -> str | None:
        """Predict a shard, and write a record per frame. After an error, write and return its reason."""
        number = self.run.shards[shard].inputs.start
        record = self.run.record(number)
        drawn = DrawnVideo(self.run, self.run.inputs[number])
        chunk: list[Record] = []
        # A resumed run predicts the same batches.
        chunk_size = -(-CHUNK_FRAMES // self.predictor.batch_size) * self.predictor.batch_size

        def write(result: tuple[Record, np.ndarray | str | None, bool]) -> None:
            filled, image, is_new = result
            if image is not None:
                drawn.write(image)
            writer.write(filled)
            if is_new:
                chunk.append(filled)
            if len(chunk) == chunk_size:
                with write_records(self._chunk_path(shard, f"{chunk[0].frame:09}"), self.run.format) as chunk_writer:
                    for part in chunk:
                        chunk_writer.write(part)
                chunk.clear()

        error = None
        try:
            with thread_queue(pool, write) as submit:
                for count, call in enumerate(self._iter_calls(shard, record), start=1):
                    if isinstance(call, str):
                        error = call
                        break
                    submit(*call)
                    self.progress(0, count)
        finally:
            drawn.close()
        if error is not None:
            writer.write(record._replace(error=error))
        for path in self._chunk_paths(shard):
            path.unlink()
        self.progress(1, 0)
        return error

    def _iter_calls(self, shard: int, record: Record) -> Iterator[_Call | str]:
        """Restore or predict the frames of a video, and yield a call for each; after an error, its message."""
        predictor, number = self.predictor, 0
        try:
            video = Video(record.path)
            frames = iter(video)
            for stored, image in zip(self._iter_stored(shard, record), frames, strict=False):
                yield self._restore, stored, image
                number += 1
            while batch := list(islice(frames, predictor.batch_size)):
                if predictor.tile is not None:
                    predictions = map(predictor, batch)
                else:
                    samples = predictor.predict_preprocessed([predictor.preprocess(frame) for frame in batch])
                    predictions = map(predictor.to_prediction, batch, samples, repeat(MAX_MASK_BYTES))
                for prediction in predictions:
                    yield self._fill, record._replace(frame=number), prediction
                    number += 1
            video.check_end()
        except Exception as error:  # decoders, models and pipelines raise many types
            yield error_message(error)

    def _fill(self, record: Record, prediction: Prediction) -> tuple[Record, np.ndarray | str | None, bool]:
        key = map_key(self.run.inputs[record.number], record.frame)
        filled = self.results.fill(record, prediction.image.shape[:2], prediction, key)
        return filled, try_or_message(self.results.draw, prediction) if self.run.drawing.visualize else None, True

    def _restore(self, record: Record, image: np.ndarray) -> tuple[Record, np.ndarray | str | None, bool]:
        def draw() -> np.ndarray:
            return self.results.draw(stored_prediction(self.run, self.run.inputs[record.number], record, image))

        return record, try_or_message(draw) if self.run.drawing.visualize else None, False

    def _iter_stored(self, shard: int, record: Record) -> Iterator[Record]:
        """Read the frames that a killed run has stored, unless the video has changed since."""
        changed, number = os.stat(record.path).st_ctime_ns, 0
        for path in self._chunk_paths(shard):
            if path.stat().st_mtime_ns < changed:
                return
            try:
                stored = list(read_records(path, self.run.format))
            except DamagedShard:
                return
            if stored[0].frame != number:
                return
            yield from stored
            number += len(stored)

    def _chunk_path(self, shard: int, first: str) -> Path:
        return self.run.out / SHARDS / f".frames-{shard:06}-{first}{self.run.format.suffix}"

    def _chunk_paths(self, shard: int) -> list[Path]:
        pattern = self._chunk_path(shard, "*")
        return sorted(pattern.parent.glob(pattern.name))


class DrawnVideo:
    """MP4 file of visualizations, with the frame rate of its input. The first frame determines its size."""

    def __init__(self, run: Run, input_: Input) -> None:
        self._run, self._input, self._is_drawable = run, input_, True
        self._path = run.out / VISUALIZATIONS / f"{input_.key}.mp4"
        self._writer: cv2.VideoWriter | None = None

    def write(self, image: np.ndarray | str) -> None:
        """Add a frame. If it cannot be drawn, for the reason given instead, report it and remove the video."""
        if not self._is_drawable:
            return
        try:
            if isinstance(image, str):
                raise ValueError(image)
            self._writer = self._writer or self._open(*image.shape[:2])
            self._writer.write(image)
        except ValueError as error:
            self._is_drawable = False
            self.close()
            self._path.unlink(missing_ok=True)
            self._run.report(f"not drawn: {self._input.path}: {error}")

    def _open(self, height: int, width: int) -> cv2.VideoWriter:
        write_file(self._path, b"")  # OpenCV would not report a full disk or a missing permission
        rate = Video(self._input.path).rate
        writer = cv2.VideoWriter(str(self._path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
        if not writer.isOpened():
            raise ValueError(f"{height}x{width} pixels at {rate:g} frames per second do not fit into an MP4")
        return writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()
