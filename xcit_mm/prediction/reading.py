"""Images read by torch's DataLoader and predicted in batches of one size. An image that fails is
data, not an error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.errors import reason
from .listing import Item
from .prediction import Prediction
from .predictor import Predictor

TIMEOUT = 600  # seconds without an image from the processes that read


class Reader(Dataset):
    """Data set of items with their images, (H, W, 3), or with the reasons why they cannot be read."""

    def __init__(self, items: Sequence[Item], predictor: Predictor) -> None:
        self.items, self._read = items, predictor.preprocess.read

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> tuple[Item, np.ndarray | str]:
        item = self.items[number]
        try:
            return item, self._read(item.path)
        except Exception as error:  # decoders raise many types
            return item, reason(error)


def load(reader: Reader, workers: int, mark: Callable[[Item], None]) -> DataLoader:
    """Return images in order, read by other processes unless `workers` is 0. `mark` is called
    before each is read.

    If a process dies, or gives no image for `TIMEOUT` seconds, a RuntimeError of `DataLoader` says
    so.
    """

    def numbers() -> Iterator[int]:
        for number, item in enumerate(reader.items):
            mark(item)
            yield number

    options: dict[str, Any] = dict(sampler=numbers(), collate_fn=tuple, worker_init_fn=_start)
    return DataLoader(
        reader, batch_size=None, num_workers=workers, timeout=TIMEOUT if workers else 0, **options
    )


def _start(number: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def iter_predictions(
    predictor: Predictor, images: Iterable[tuple[Item, np.ndarray | str]]
) -> Iterator[tuple[Item, Prediction | str]]:
    """Predict images in batches of one size, and yield each with its prediction or the reason of
    its failure.
    """
    waiting: dict[tuple[int, ...], list[tuple[Item, np.ndarray]]] = {}  # by shape
    for item, image in images:
        if isinstance(image, str):
            yield item, image
            continue
        waiting.setdefault(image.shape, []).append((item, image))
        if predictor.tile is not None or len(waiting[image.shape]) == predictor.batch_size:
            yield from _predict(predictor, waiting.pop(image.shape))
        elif (
            sum(map(len, waiting.values())) >= 4 * predictor.batch_size
        ):  # bounds the memory with many sizes
            yield from _predict(
                predictor, waiting.pop(max(waiting, key=lambda shape: len(waiting[shape])))
            )
    for batch in waiting.values():
        yield from _predict(predictor, batch)


def _predict(
    predictor: Predictor, batch: list[tuple[Item, np.ndarray]]
) -> Iterator[tuple[Item, Prediction | str]]:
    """Predict a batch. After an error, predict its images separately to find those that fail."""
    try:
        predictions = predictor([image for _, image in batch])
    except Exception as error:  # models and pipelines raise many types
        if "DataLoader " in str(error):  # torch raises the death of a process that reads anywhere
            raise
        if len(batch) == 1:
            yield batch[0][0], reason(error)
        else:
            for pair in batch:
                yield from _predict(predictor, [pair])
    else:
        yield from zip([item for item, _ in batch], predictions, strict=True)
