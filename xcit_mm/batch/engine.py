"""Prediction of shards: processes read images, the model predicts batches, threads draw and encode the results."""

import contextlib
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, repeat
from typing import IO, Any, NamedTuple

import numpy as np

from ..prediction import Prediction, Predictor
from ..prediction.preprocessing import Preprocessing, input_shapes
from ..utils.images import read_image
from .failures import SUSPECT, FailureCounter
from .inputs import Input
from .loading import Loader, LoaderDied
from .rasters import RasterPredictor
from .results import MAX_MASK_BYTES, Progress, ResultWriter, error_message, thread_queue, try_or_message
from .run import Run
from .shards import Record, ShardFormat, write_records
from .videos import VideoPredictor

_Task = tuple[int, int, Input | str]  # shard, number of the input, input or the reason why it is not predicted
MAX_DEATHS = 2  # of processes that predict a suspect alone
KILLER = f"the process that predicts it died {MAX_DEATHS} times: out of memory, or a decoder crashes"


class _LoadedImage(NamedTuple):
    """An image that was read, or could not be read."""

    shard: int
    number: int  # of the input
    size: tuple[int, int] = (0, 0)
    image: np.ndarray | None = None  # (H, W, 3), if the image will be drawn or split into tiles
    data: dict[str, Any] | None = None  # input of the model, unless the image will be split into tiles
    error: str | None = None


def _load_image(
    preprocess: Preprocessing | None, loading: dict[str, str], keeps_image: bool, task: _Task
) -> _LoadedImage:
    """Read and preprocess the image of a task."""
    shard, number, input_ = task
    if isinstance(input_, str):
        return _LoadedImage(shard, number, error=input_)
    try:
        image = read_image(input_.path, **loading)
        data = preprocess(image) if preprocess else None
    except Exception as error:  # decoders and transforms raise many types
        return _LoadedImage(shard, number, error=error_message(error))
    return _LoadedImage(shard, number, image.shape[:2], image if keeps_image else None, data)


class Engine:
    """Predicts shards of a run; with `retry`, only the failed inputs of completed shards.

    The files of a shard do not depend on the process that predicts it.
    """

    def __init__(self, run: Run, predictor: Predictor, progress: Progress) -> None:
        self.run, self.predictor, self.execution, self._progress = run, predictor, run.execution, progress
        self._results = ResultWriter(run)
        self._rasters = RasterPredictor(run, predictor, self.progress)
        self._videos = VideoPredictor(run, predictor, self._results, self.progress)
        self._in_flight: dict[int, IO[bytes]] = {}  # lists of inputs, by shard
        self._alone: int | None = None  # the only input to predict
        self._failures = FailureCounter(run, predictor)

    def progress(self, inputs: int, frames: int) -> None:
        self._restart_timer()
        self._progress(inputs, frames)

    def _restart_timer(self) -> None:
        """Let the system end this process by SIGALRM if the next image, frame or tile exceeds the time limit."""
        if self.execution.timeout is not None:  # no thread: a hanging decoder may hold Python's lock
            signal.setitimer(signal.ITIMER_REAL, self.execution.timeout)

    def work(self, shards: Iterable[int]) -> None:
        """Predict shards.

        A shard of images is requested shortly before the previous shard is completed, so that images are read ahead.
        Suspects are recorded as failures, and left to `predict_alone`.

        Raises:
            WorkerStopped: If an input fails that was predicted before, after a streak of failures.
            RuntimeError: If there are more failures than allowed, or a process that reads images died.
        """
        self._shards = iter(shards)
        self._next = next(self._shards, None)
        in_tiles, processes = self.predictor.tile is not None, self.execution.num_workers
        preprocess = None if in_tiles else self.predictor.preprocess
        images_per_batch = 1 if in_tiles else self.predictor.batch_size
        loader = Loader(
            partial(_load_image, preprocess, self.run.model.loading, self.run.drawing.visualize or in_tiles),
            self._tasks,
            processes,
            max(2, -(-2 * images_per_batch // max(1, processes))),
            self.execution.timeout,
        )
        self._restart_timer()
        try:
            with loader, ThreadPoolExecutor(2) as pool:
                while self._next is not None:
                    if self._first_input(self._next).is_image:
                        for shard, images in groupby(loader, key=lambda image: image.shard):
                            with self._write(shard) as writer:
                                self._predict_images(shard, images, writer, pool)
                    else:
                        with self._write(self._next) as writer:
                            self._predict_file(self._next, writer, pool)
                        self._next = next(self._shards, None)
        except BaseException as error:
            for shard, file in self._in_flight.items():
                file.close()
                if not isinstance(error, LoaderDied):
                    self.run.in_flight_path(shard).unlink(missing_ok=True)
            raise
        finally:
            if self.execution.timeout is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def predict_alone(self, shard: int, number: int) -> None:
        """Predict one input of a completed shard, or record its failure if processes died from it before."""
        self._alone = number
        self.work([shard])

    @contextlib.contextmanager
    def _write(self, shard: int) -> Iterator[ShardFormat]:
        """Open a shard for writing, and remove its list of inputs in flight when it is completed."""
        if not self.execution.retry_failed:
            self._failures.start_shard(shard)
        with write_records(self.run.shard_path(shard), self.run.format) as writer:
            yield writer
        if shard in self._in_flight:
            self._in_flight.pop(shard).close()
            self.run.in_flight_path(shard).unlink()

    def _mark(self, shard: int, number: int) -> None:
        """Note that an input is in flight, or if it was, that it is completed."""
        if self._alone is None:
            if shard not in self._in_flight:
                self._in_flight[shard] = self.run.in_flight_path(shard).open("wb", buffering=0)
            self._in_flight[shard].write(b"%d\n" % number)

    def _obstacle(self, shard: int, number: int) -> str | None:
        """Return the reason why an input is not predicted now."""
        deaths = self.run.suspects.get((shard, number))
        if self._alone is None:
            return None if deaths is None else SUSPECT
        if isinstance(deaths, str):
            return deaths
        return KILLER if deaths is not None and deaths > MAX_DEATHS else None

    def _first_input(self, shard: int) -> Input:
        return self.run.inputs[self.run.shards[shard].inputs.start]

    def _tasks(self) -> Iterator[_Task]:
        """Iterate over the images of the next shards, up to a shard of a video or raster."""
        while self._next is not None and self._first_input(self._next).is_image:
            shard = self._next
            completed = self._completed(shard, brief=True)
            for number in self.run.numbers(shard):
                if number not in completed:
                    self._mark(shard, number)
                    yield shard, number, self._obstacle(shard, number) or self.run.inputs[number]
            self._next = next(self._shards, None)

    def _completed(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        """Read the records of a shard that stay."""
        predicts_again = self.execution.retry_failed or self._alone is not None
        return self.run.kept_records(shard, brief, self._alone) if predicts_again else {}

    def _predict_file(self, shard: int, writer: ShardFormat, pool: ThreadPoolExecutor) -> None:
        """Predict a shard of a video or raster."""
        number = self.run.shards[shard].inputs.start
        self._mark(shard, number)
        obstacle = self._obstacle(shard, number)
        if obstacle is not None:
            writer.write(self.run.record(number)._replace(error=obstacle))
            self.progress(self.run.shards[shard].size, 0)
        elif self.run.inputs[number].is_video:
            self._failures.add(number, self._videos.predict(shard, writer, pool))
        else:
            self._failures.add(number, self._rasters.predict(shard, writer))

    def _predict_images(
        self, shard: int, images: Iterable[_LoadedImage], writer: ShardFormat, pool: ThreadPoolExecutor
    ) -> None:
        records, numbers = self._completed(shard), deque(self.run.numbers(shard))

        def write(number: int) -> None:
            for record in records.pop(number):
                writer.write(record)

        def keep(record: Record) -> None:
            records[record.number] = [record]
            while numbers and numbers[0] in records:  # in the order of the inputs
                write(numbers.popleft())
            self._mark(shard, record.number)
            self.progress(1, 0)
            self._failures.add(record.number, record.error)

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
            self._restart_timer()
            if image.error is not None:
                yield image, image.error
            elif image.data is None:
                assert image.image is not None  # for tiles
                yield image, try_or_message(self.predictor, image.image)
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
        self._restart_timer()
        samples = self.predictor.predict_preprocessed([image.data for image in batch if image.data])
        not_kept = np.empty((0, 0, 3), np.uint8)
        images = [not_kept if image.image is None else image.image for image in batch]
        return list(map(self.predictor.to_prediction, images, samples, repeat(MAX_MASK_BYTES)))
