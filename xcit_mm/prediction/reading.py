"""Images of items, read in order by this process or by processes of a DataLoader."""

from collections.abc import Callable, Iterator, Sequence
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.errors import reason
from .items import Item
from .journal import file_stamp
from .preprocessing import Preprocessing

TIMEOUT = 600  # seconds without an image from the processes that read


class ReadImage(NamedTuple):
    """An item with its pixels (H, W, C), or the reason why it cannot be read."""

    item: Item
    stamp: list[int] | None
    pixels: np.ndarray | None
    error: str = ""


class _Images(Dataset):
    """A data set whose keys are items. One that cannot be read is a sample with an error."""

    def __init__(self, preprocess: Preprocessing) -> None:
        self.preprocess = preprocess

    def __getitem__(self, item: Item) -> ReadImage:
        stamp = file_stamp(item.path)
        try:
            return ReadImage(item, stamp, self.preprocess.read(item.path))
        except Exception as error:  # decoders raise many types
            return ReadImage(item, stamp, None, reason(error))


def _stop_threads(worker: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def _return_unchanged(image: ReadImage) -> ReadImage:
    return image


class Reader:
    """Reads images by `workers` other processes, or by this process if there are none."""

    def __init__(self, preprocess: Preprocessing, workers: int) -> None:
        self.preprocess = preprocess
        self.workers = workers
        self._processes: list[BaseProcess] = []

    def read(self, items: Sequence[Item], start: Callable[[Item], None]) -> Iterator[ReadImage]:
        """Read images in order. `start` is called with each item before it is read.

        Raises:
            RuntimeError: If another process died or hangs.
        """

        def iter_started() -> Iterator[Item]:
            for item in items:
                start(item)
                yield item

        workers = min(self.workers, len(items))
        loader = DataLoader(
            _Images(self.preprocess),
            batch_size=None,
            sampler=iter_started(),
            num_workers=workers,
            prefetch_factor=1 if workers == 1 else None,  # so an image that hangs is read alone
            collate_fn=_return_unchanged,  # type: ignore[arg-type]  # a single image
            timeout=TIMEOUT if workers else 0,
            worker_init_fn=_stop_threads,
        )
        earlier = active_children()
        images = iter(loader)
        self._processes = [process for process in active_children() if process not in earlier]
        return images

    def has_died(self) -> bool:
        """Return whether a process that reads has crashed.

        torch then raises a RuntimeError wherever this process is.
        """
        return any(process.exitcode for process in self._processes)
