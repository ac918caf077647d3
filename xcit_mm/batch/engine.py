"""Prediction of shards: processes read images, the model predicts batches, threads draw and encode the results."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np

from ..prediction.predictor import Prediction, Predictor, Preprocessing, input_shapes
from .inputs import Input
from .loading import Loader
from .options import Drawing
from .rasters import RasterPredictor
from .reading import read_image
from .results import MAX_MASK_BYTES, Progress, ResultWriter, error_message, thread_queue, try_or_message
from .run import Run
from .shards import Record, ShardFormat, write_records
from .videos import VideoPredictor

__all__ = ["Engine"]

_Task = tuple[int, int, Input]  # shard, number of the input, input


class _LoadedImage(NamedTuple):
    """An image that was read, or could not be read."""

    shard: int
    number: int  # of the input
    size: tuple[int, int] = (0, 0)
    image: np.ndarray | None = None  # (H, W, 3), if the image will be drawn or split into tiles
    data: dict[str, Any] | None = None  # input of the model, unless the image will be split into tiles
    error: str | None = None


class _ImageReader:
    """Reads and preprocesses the image of a task."""

    def __init__(self, preprocess: Preprocessing | None, loading: dict[str, str], keep_image: bool) -> None:
        self._preprocess, self._loading, self._keep_image = preprocess, loading, keep_image

    def __call__(self, task: _Task) -> _LoadedImage:
        shard, number, input_ = task
        loaded = _LoadedImage(shard, number)
        try:
            image = read_image(input_.path, **self._loading)
            data = self._preprocess(image) if self._preprocess else None
        except Exception as error:  # decoders and transforms raise many types
            return loaded._replace(error=error_message(error))
        return loaded._replace(size=image.shape[:2], image=image if self._keep_image else None, data=data)


class Engine:
    """Predicts shards of a run; with `retry`, only the failed inputs of completed shards.

    The files of a shard do not depend on the process that predicts it.
    """

    def __init__(
        self, run: Run, predictor: Predictor, workers: int, retry: bool, progress: Progress, drawing: Drawing
    ) -> None:
        self.run, self.predictor, self.workers, self.retry, self.progress = run, predictor, workers, retry, progress
        self._results = ResultWriter(run, drawing)
        self._rasters = RasterPredictor(run, predictor, progress)
        self._videos = VideoPredictor(run, predictor, self._results, progress)

    def work(self, shards: Iterable[int]) -> None:
        """Predict shards.

        A shard of images is requested shortly before the previous shard is completed, so that images are read ahead.
        """
        self._shards = iter(shards)
        self._next = next(self._shards, None)
        in_tiles = self.predictor.tile is not None
        preprocess = None if in_tiles else self.predictor.preprocess
        images_per_batch = 1 if in_tiles else self.predictor.batch_size
        loader = Loader(
            _ImageReader(preprocess, self.run.model.loading, self._results.visualize or in_tiles),
            self._tasks,
            self.workers,
            max(2, -(-2 * images_per_batch // max(1, self.workers))),
        )
        with ThreadPoolExecutor(2) as pool:
            while self._next is not None:
                if self._has_images(self._next):
                    for shard, images in groupby(loader, key=lambda image: image.shard):
                        with write_records(self.run.shard_path(shard), self.run.format) as writer:
                            self._predict_images(shard, images, writer, pool)
                    continue
                with write_records(self.run.shard_path(self._next), self.run.format) as writer:
                    if self._first(self._next).is_video:
                        self._videos.predict(self._next, writer, pool)
                    else:
                        self._rasters.predict(self._next, writer)
                self._next = next(self._shards, None)

    def _first(self, shard: int) -> Input:
        return self.run.inputs[self.run.shards[shard].inputs.start]

    def _has_images(self, shard: int) -> bool:
        """Return whether a shard has images, not a video or raster."""
        return not self._first(shard).is_video and self._first(shard).size is None

    def _tasks(self) -> Iterator[_Task]:
        """Iterate over the images of the next shards, up to a shard of a video or raster."""
        while self._next is not None and self._has_images(self._next):
            shard = self._next
            completed = self._completed(shard, brief=True)
            for number in self.run.shards[shard].inputs:
                if number not in completed:
                    yield shard, number, self.run.inputs[number]
            self._next = next(self._shards, None)

    def _completed(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        return self.run.successful_records(shard, brief) if self.retry else {}

    def _predict_images(
        self, shard: int, images: Iterable[_LoadedImage], writer: ShardFormat, pool: ThreadPoolExecutor
    ) -> None:
        records, numbers = self._completed(shard), deque(self.run.shards[shard].inputs)

        def write(number: int) -> None:
            for record in records.pop(number):
                writer.write(record)

        def keep(record: Record) -> None:
            records[record.number] = [record]
            while numbers and numbers[0] in records:  # in the order of the inputs
                write(numbers.popleft())
            self.progress(1, 0)

        try:
            with thread_queue(pool, keep) as submit:
                for image, prediction in self._predictions(images):
                    submit(self._results.write_image, image.number, image.size, prediction)
        finally:  # after Ctrl-C, the records of completed images are kept
            for number in sorted(records):
                write(number)

    def _predictions(self, images: Iterable[_LoadedImage]) -> Iterator[tuple[_LoadedImage, Prediction | str]]:
        """Predict images in batches of equal size, and yield each with its prediction or the reason of its failure."""
        batch_size = self.predictor.batch_size
        waiting: dict[tuple, list[_LoadedImage]] = {}  # by the size of the model's input
        for image in images:
            if image.error is not None:
                yield image, image.error
            elif image.data is None:
                assert image.image is not None  # for tiles
                yield image, try_or_message(self.predictor.predict, image.image)
            else:
                size = input_shapes(image.data)
                waiting.setdefault(size, []).append(image)
                if len(waiting[size]) == batch_size:
                    yield from self._predict_batch(waiting.pop(size))
                elif sum(map(len, waiting.values())) >= 4 * batch_size:  # bounds the memory with many sizes
                    yield from self._predict_batch(waiting.pop(max(waiting, key=lambda size: len(waiting[size]))))
        for batch in waiting.values():
            yield from self._predict_batch(batch)

    def _predict_batch(self, batch: list[_LoadedImage]) -> Iterator[tuple[_LoadedImage, Prediction | str]]:
        """Predict a batch. After an error, predict its images separately to find those that fail."""
        predictions = try_or_message(self._forward, batch)
        if not isinstance(predictions, str):
            yield from zip(batch, predictions, strict=True)
        elif len(batch) == 1:
            yield batch[0], predictions
        else:
            for image in batch:
                yield from self._predict_batch([image])

    def _forward(self, batch: list[_LoadedImage]) -> list[Prediction]:
        samples = self.predictor.predict_preprocessed([image.data for image in batch if image.data])
        not_kept = np.empty((0, 0, 3), np.uint8)
        images = [not_kept if image.image is None else image.image for image in batch]
        return list(map(self.predictor.to_prediction, images, samples, repeat(MAX_MASK_BYTES)))
