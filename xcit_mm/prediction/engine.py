"""Items to records: a process reads and predicts items, and appends records to its journal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.errors import reason
from .journal import file_stamp
from .listing import Item
from .prediction import Prediction
from .preprocessing import Preprocessing
from .results import InputError, Results
from .videos import iter_frames

MAX_DEATHS = 3  # of processes with one item in flight, after which it is not tried again
KILLER = "predicting it crashed or hung the process: out of memory, or a decoder fails"
AGAIN = "the same command goes on"
TIMEOUT = 600  # seconds without an image from the processes that read


class ReaderDied(RuntimeError):
    """A process that reads images died or hangs."""


class ReadImage(NamedTuple):
    """An item with its pixels (H, W, C), or the reason why it cannot be read."""

    item: Item
    stamp: list[int] | None
    pixels: np.ndarray | None
    error: str = ""


class Reader(Dataset):
    """A data set of images. One that cannot be read is a sample too."""

    def __init__(self, items: Sequence[Item], preprocess: Preprocessing) -> None:
        self.items = items
        self.preprocess = preprocess

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> ReadImage:
        item = self.items[number]
        stamp = file_stamp(item.path)
        try:
            return ReadImage(item, stamp, self.preprocess.read(item.path))
        except Exception as error:  # decoders raise many types
            return ReadImage(item, stamp, None, reason(error))


def _without_threads(worker: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def _unchanged(image: ReadImage) -> ReadImage:
    return image


class Engine:
    """Predicts items. `workers` is the number of processes that read images. With 0, this process
    reads them.
    """

    def __init__(self, results: Results, workers: int) -> None:
        self.results = results
        self.workers = workers
        self.predictor = results.predictor
        self.journal = results.journal
        self._readers: list[BaseProcess] = []

    def predict(self, items: Sequence[Item], deaths: Mapping[str, int]) -> Iterator[Item]:
        """Predict items, and yield each when its record is in the journal.

        Args:
            deaths: Those of `Progress`. Such items are predicted last and alone, and after
                `MAX_DEATHS` recorded as failures.

        Raises:
            ReaderDied: If a process that reads images died. It counts as a death.
            OSError: If a result cannot be written.
        """
        innocent = [item for item in items if item.path not in deaths]
        try:
            yield from self._predict_images([item for item in innocent if not item.is_video])
            for item in innocent:
                if item.is_video:
                    yield self._predict_video(item)
            for item in items:
                if deaths.get(item.path, 0) >= MAX_DEATHS:
                    yield self._add_failure(item, file_stamp(item.path), KILLER)
                elif item.path in deaths and item.is_video:
                    yield self._predict_video(item)
                elif item.path in deaths:
                    yield from self._predict_images([item])
        except OSError as error:  # the disk is full, say
            with suppress(OSError):
                self.journal.end()
            problem = error.strerror or error
            raise OSError(
                f"{self.results.out} cannot be written: {problem}; free space, and {AGAIN}"
            ) from error

    def _predict_images(self, items: Sequence[Item]) -> Iterator[Item]:
        """Predict images in batches of one size."""
        for batch in self._iter_batches(self._iter_read(items)):
            for image, result in zip(batch, self._predict_batch(batch), strict=True):
                if isinstance(result, str):
                    yield self._add_failure(image.item, image.stamp, result)
                    continue
                self.results.draw(image.item, [result])
                fields = self.results.store(image.item, result)
                self.journal.add(image.item, image.stamp, self.results.drawing, **fields)
                yield image.item

    def _iter_read(self, items: Sequence[Item]) -> Iterator[ReadImage]:
        """Read images in order."""

        def iter_started() -> Iterator[int]:
            for number, item in enumerate(items):
                self._start(item)
                yield number

        workers = min(self.workers, len(items))
        loader = DataLoader(
            Reader(items, self.predictor.preprocess),
            batch_size=None,
            sampler=iter_started(),
            num_workers=workers,
            prefetch_factor=1 if workers == 1 else None,  # one image that hangs is alone in flight
            collate_fn=_unchanged,  # type: ignore[arg-type]  # single images, not a batch
            timeout=TIMEOUT if workers else 0,
            worker_init_fn=_without_threads,
        )
        earlier = active_children()
        images = iter(loader)
        self._readers = [process for process in active_children() if process not in earlier]
        try:
            yield from images
        except RuntimeError as error:  # of the loader: the reader itself raises nothing
            raise ReaderDied(f"{reason(error)}: {AGAIN}") from error

    def _iter_batches(self, images: Iterable[ReadImage]) -> Iterator[list[ReadImage]]:
        """Collect batches of one size, and images that cannot be read."""
        size = 1 if self.predictor.tile is not None else self.predictor.batch_size
        waiting: dict[tuple[int, ...], list[ReadImage]] = {}  # by shape
        for image in images:
            if image.pixels is None:
                yield [image]
                continue
            shape = image.pixels.shape
            waiting.setdefault(shape, []).append(image)
            if len(waiting[shape]) == size:
                yield waiting.pop(shape)
            elif sum(map(len, waiting.values())) >= 4 * size:  # bounds the memory with many sizes
                largest = max(waiting, key=lambda shape: len(waiting[shape]))
                yield waiting.pop(largest)
        yield from waiting.values()

    def _predict_batch(self, batch: Sequence[ReadImage]) -> list[Prediction | str]:
        """Return the prediction of each image, or the reason of its failure."""
        pixels = [image.pixels for image in batch if image.pixels is not None]
        if not pixels:
            return [image.error for image in batch]
        try:
            return list(self.predictor(pixels))
        except Exception as error:  # models and pipelines raise many types
            # torch raises the death of a reading process wherever this process is.
            if any(process.exitcode for process in self._readers):
                raise ReaderDied(f"{reason(error)}: {AGAIN}") from error
            if len(batch) == 1:
                return [reason(error)]
        return [result for image in batch for result in self._predict_batch([image])]

    def _start(self, item: Item) -> None:
        self.journal.start(item)
        self.results.remove(item)

    def _add_failure(self, item: Item, stamp: list[int] | None, error: str) -> Item:
        self.journal.add(item, stamp, error=error)
        return item

    def _predict_video(self, item: Item) -> Item:
        """Predict a video, with a record for each frame and one for the video. A failure keeps the
        frames before it.
        """
        self._start(item)
        stamp = file_stamp(item.path)
        count = 0

        def iter_stored() -> Iterator[Prediction]:
            nonlocal count
            for prediction in self._iter_video(item):
                fields = self.results.store(item, prediction, count)
                self.journal.add_frame(count, **fields)
                count += 1
                yield prediction

        try:
            self.results.draw(item, iter_stored())
        except InputError as error:
            return self._add_failure(item, stamp, str(error))
        self.journal.add(item, stamp, self.results.drawing, frames=count)
        return item

    def _iter_video(self, item: Item) -> Iterator[Prediction]:
        """Predict the frames of a video. An error is an `InputError`."""
        try:
            frames = iter_frames(item.path)
            while batch := list(islice(frames, self.predictor.batch_size)):
                yield from self.predictor(batch)
        except Exception as error:  # decoders, models and pipelines raise many types
            raise InputError(reason(error)) from error
