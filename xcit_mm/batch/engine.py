"""Prediction of shards: processes read images, the model predicts batches, threads draw and encode the results."""

import contextlib
import resource
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..prediction.predictor import Prediction, Predictor, Preprocessing
from .inputs import Input
from .rasters import RasterPredictor
from .reading import read_image
from .results import Progress, ResultWriter, error_message, thread_queue, try_or_message
from .run import Run
from .shards import Record, ShardFormat, write_records
from .videos import VideoPredictor

__all__ = ["Engine"]

_Task = tuple[int, int, Input]  # shard, number of the input, input


class _LoadedImage(NamedTuple):
    """An image that a worker has read, or tried to read. Videos and rasters are not read by workers."""

    shard: int
    number: int  # of the input
    size: tuple[int, int] = (0, 0)
    image: Tensor | None = None  # (H, W, 3), if the image will be drawn or split into tiles
    data: dict[str, Any] | None = None  # input of the model, unless the image will be split into tiles
    error: str | None = None


class _ImageDataset(Dataset):
    """Reads and preprocesses the images of the tasks from a sampler."""

    def __init__(self, preprocess: Preprocessing | None, loading: dict[str, str], keep_image: bool) -> None:
        self._preprocess, self._loading, self._keep_image = preprocess, loading, keep_image

    def __getitem__(self, task: _Task) -> _LoadedImage:
        shard, number, input_ = task
        loaded = _LoadedImage(shard, number)
        if input_.is_video or input_.size is not None:
            return loaded
        try:
            image = read_image(input_.path, **self._loading)
            data = self._preprocess(image) if self._preprocess else None
        except Exception as error:  # decoders and transforms raise many types
            return loaded._replace(error=error_message(error))
        # Tensors are sent through shared memory, arrays through a pipe.
        kept = torch.from_numpy(image) if self._keep_image else None
        return loaded._replace(size=image.shape[:2], image=kept, data=data)


class Engine:
    """Predicts shards of a run; with `retry`, only the failed inputs of completed shards.

    The files of a shard do not depend on the process that predicts it.
    """

    def __init__(self, run: Run, predictor: Predictor, workers: int, retry: bool, progress: Progress) -> None:
        self.run, self.predictor, self.workers, self.retry, self.progress = run, predictor, workers, retry, progress
        self._results = ResultWriter(run, predictor)
        self._rasters = RasterPredictor(run, predictor, progress)
        self._videos = VideoPredictor(run, predictor, self._results, progress)

    def work(self, shards: Iterable[int]) -> None:
        """Predict shards. The next shard is requested shortly before the current shard is completed."""
        in_tiles, options = self.predictor.tile is not None, self.run.options
        preprocess = None if in_tiles else self.predictor.preprocess
        images_per_batch = 1 if in_tiles else self.predictor.batch_size
        _raise_file_limit()
        loader: Iterable[_LoadedImage] = DataLoader(
            _ImageDataset(preprocess, self.run.model.loading, options.visualize or in_tiles),
            batch_size=None,
            sampler=self._tasks(shards),
            num_workers=self.workers,
            prefetch_factor=max(2, -(-2 * images_per_batch // self.workers)) if self.workers else None,
            worker_init_fn=_ignore_interrupts,
        )
        with ThreadPoolExecutor(2) as pool:
            for shard, images in groupby(loader, key=lambda image: image.shard):
                with write_records(self.run.shard_path(shard), self.run.format) as writer:
                    self._predict_shard(shard, images, writer, pool)

    def _tasks(self, shards: Iterable[int]) -> Iterator[_Task]:
        for shard in shards:
            completed = self._completed(shard, brief=True)
            for number in self.run.shards[shard].inputs:
                if number not in completed:
                    yield shard, number, self.run.inputs[number]

    def _completed(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        return self.run.successful_records(shard, brief) if self.retry else {}

    def _predict_shard(
        self, shard: int, images: Iterable[_LoadedImage], writer: ShardFormat, pool: ThreadPoolExecutor
    ) -> None:
        first = self.run.inputs[self.run.shards[shard].inputs.start]
        if first.size is not None:
            self._rasters.predict(shard, writer)
            return
        if first.is_video:
            self._videos.predict(shard, writer, pool)
            return
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
        waiting: dict[tuple[int, ...], list[_LoadedImage]] = {}  # by the size of the model's input
        for image in images:
            if image.error is not None:
                yield image, image.error
            elif image.data is None:
                assert image.image is not None  # for tiles
                yield image, try_or_message(self.predictor.predict, image.image.numpy())
            else:
                size = tuple(image.data["inputs"].shape)
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
        images = [not_kept if image.image is None else image.image.numpy() for image in batch]
        return list(map(self.predictor.to_prediction, images, samples))


def _ignore_interrupts(worker: int) -> None:
    """Leave Ctrl-C to the main process, which writes the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the system's: each tensor that a worker sends is an open file."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
