"""Images of items, read in batches by this process or by processes of a DataLoader."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.errors import reason
from .listing import Item
from .preprocessing import Preprocessing

TIMEOUT = 600  # seconds without an image from the processes that read

ReadImage: TypeAlias = tuple[Item, np.ndarray | str]
"""An item with its pixels (H, W, C), or with the reason why it cannot be read."""


class _Images(Dataset):
    """A data set whose keys are items."""

    def __init__(self, preprocess: Preprocessing) -> None:
        self.preprocess = preprocess

    def __getitem__(self, item: Item) -> ReadImage:
        try:
            return item, self.preprocess.read(item.path)
        except Exception as error:  # decoders raise many types
            return item, reason(error)


def _stop_threads(worker: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def read_images(
    preprocess: Preprocessing,
    items: Sequence[Item],
    batch_size: int,
    workers: int,
    start: Callable[[Item], None],
) -> Iterable[list[ReadImage]]:
    """Read images in order, by `workers` other processes, or by this process if there are none.

    `start` is called with each item before it is read. If a process dies or hangs, torch raises a
    RuntimeError wherever this process is (`is_death_of_reader`).
    """

    def iter_started() -> Iterator[Item]:
        for item in items:
            start(item)
            yield item

    workers = min(workers, len(items))
    return DataLoader(
        _Images(preprocess),
        batch_size=batch_size,
        sampler=iter_started(),
        num_workers=workers,
        prefetch_factor=1 if workers == 1 else None,  # so an image that hangs is read alone
        collate_fn=list,
        timeout=TIMEOUT if workers else 0,
        worker_init_fn=_stop_threads,
    )


def is_death_of_reader(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
