"""Images read by torch's DataLoader and predicted in batches of one size. An image that fails is data, not an error."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.errors import reason
from .listing import Item
from .prediction import Prediction
from .predictor import Predictor

TIMEOUT = 600  # seconds without an image from the processes that read


class Loaded(NamedTuple):
    """An image (H, W, 3) and, unless it is predicted in tiles, the model's input; or the reason of a failure."""

    item: Item
    image: np.ndarray | None = None
    data: dict[str, Any] | None = None
    error: str | None = None


class Reader(Dataset):
    """Data set of images."""

    def __init__(self, items: Sequence[Item], predictor: Predictor) -> None:
        self.items, self._preprocess, self._in_tiles = items, predictor.preprocess, predictor.tile is not None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Loaded:
        item = self.items[number]
        try:
            image = self._preprocess.read(item.path)
            return Loaded(item, image, None if self._in_tiles else self._preprocess(image))
        except Exception as error:  # decoders and transforms raise many types
            return Loaded(item, error=reason(error))


def load(reader: Reader, workers: int, mark: Callable[[Item], None]) -> DataLoader:
    """Return images in order, read by other processes unless `workers` is 0. `mark` is called before each is read.

    If a process dies, or gives no image for `TIMEOUT` seconds, a RuntimeError of `DataLoader` says so.
    """

    def numbers() -> Iterator[int]:
        for number, item in enumerate(reader.items):
            mark(item)
            yield number

    options: dict[str, Any] = dict(sampler=numbers(), collate_fn=_unchanged, worker_init_fn=_start)
    return DataLoader(reader, batch_size=None, num_workers=workers, timeout=TIMEOUT if workers else 0, **options)


def _unchanged(loaded: Loaded) -> Loaded:
    return loaded


def _start(number: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def iter_predictions(predictor: Predictor, images: Iterable[Loaded]) -> Iterator[tuple[Item, Prediction | str]]:
    """Predict images in batches of one size, and yield each with its prediction or the reason of its failure."""
    waiting: dict[tuple[int, ...], list[Loaded]] = {}  # by the shape of the model's input
    for loaded in images:
        if loaded.error is not None:
            yield loaded.item, loaded.error
            continue
        shape = () if loaded.data is None else tuple(loaded.data["inputs"].shape)
        waiting.setdefault(shape, []).append(loaded)
        if not shape or len(waiting[shape]) == predictor.batch_size:
            yield from _predict(predictor, waiting.pop(shape))
        elif sum(map(len, waiting.values())) >= 4 * predictor.batch_size:  # bounds the memory with many sizes
            yield from _predict(predictor, waiting.pop(max(waiting, key=lambda shape: len(waiting[shape]))))
    for batch in waiting.values():
        yield from _predict(predictor, batch)


def _predict(predictor: Predictor, batch: list[Loaded]) -> Iterator[tuple[Item, Prediction | str]]:
    """Predict a batch. After an error, predict its images separately to find those that fail."""
    images = [loaded.image for loaded in batch if loaded.image is not None]
    try:
        if predictor.tile is not None:
            predictions = predictor(images)
        else:
            samples = predictor.predict_preprocessed([loaded.data for loaded in batch if loaded.data is not None])
            predictions = list(map(predictor.to_prediction, images, samples))
    except Exception as error:  # models and pipelines raise many types
        if "DataLoader " in str(error):  # torch raises the death of a process that reads anywhere
            raise
        if len(batch) == 1:
            yield batch[0].item, reason(error)
        else:
            for loaded in batch:
                yield from _predict(predictor, [loaded])
    else:
        yield from zip([loaded.item for loaded in batch], predictions, strict=True)
