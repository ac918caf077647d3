"""Items to records: a process reads and predicts items, and appends records to its journal."""

import errno
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader

from ..utils.errors import reason
from .journal import Journal
from .listing import Item
from .prediction import Prediction
from .predictor import Predictor
from .preprocessing import Preprocessing
from .results import write_drawing, write_map

MAX_DEATHS = 3  # of processes with one item in flight, after which it is not tried again
CRASHED = "predicting it crashed or hung the process: out of memory, or a decoder fails"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # quotas too
TIMEOUT = 600  # seconds without images from the processes that read

# The pixels of images (H, W, C), and what becomes of images: a prediction, or why there is none.
Images: TypeAlias = dict[Item, np.ndarray]
Results: TypeAlias = dict[Item, Prediction | str]


class Run(NamedTuple):
    """What the processes of a run have in common, apart from the model.

    Attributes:
        out: Folder of the results.
        category_ids: Ids of the classes in COCO results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        workers: Number of processes that read images for one that predicts. If 0, it reads them.
        scratch: Folder for what the trunk computes of images that it sees whole.
    """

    out: Path
    category_ids: list[int]
    drawing: dict[str, Any] | None
    workers: int
    scratch: Path


class Engine:
    """A process of a run, which predicts items and records the results."""

    def __init__(self, predictor: Predictor, run: Run) -> None:
        self._predictor = predictor
        self._run = run
        self._journal = Journal(run.out)

    def predict(self, items: Sequence[Item], deaths: Mapping[str, int]) -> Iterator[Item]:
        """Predict items, and yield each when its record is in the journal.

        A stop from outside, such as Ctrl-C, is recorded, and is not a death of an item.

        Args:
            deaths: As in `Progress`. Items in it are predicted last and alone. After `MAX_DEATHS`,
                they are recorded as failures.
        """
        try:
            yield from self._predict_items([item for item in items if item.path not in deaths])
            for suspect in (item for item in items if item.path in deaths):
                if deaths[suspect.path] < MAX_DEATHS:
                    yield from self._predict_items([suspect])
                else:
                    self._journal.add(suspect, error=CRASHED)
                    yield suspect
        except (KeyboardInterrupt, GeneratorExit, OSError):
            with suppress(OSError):  # the disk may be full
                self._journal.end()
            raise

    def _predict_items(self, items: Sequence[Item]) -> Iterator[Item]:
        """Read items in batches, predict and record them."""
        workers = min(self._run.workers, len(items))
        dataset: Any = items
        loader = DataLoader(
            dataset,
            batch_size=self._predictor.batch_size if self._predictor.view is None else 1,
            sampler=self._start(items),
            num_workers=workers,
            collate_fn=partial(_read_batch, self._predictor.preprocess),
            timeout=TIMEOUT if workers else 0,
            worker_init_fn=_stop_threads,
        )
        for readable, failures in loader:
            results = self._predict_batch(readable) | failures
            for item, result in results.items():
                try:
                    self._record(item, result)
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:  # of the files of this image
                        raise
                    self._record(item, reason(error))
                yield item

    def _start(self, items: Sequence[Item]) -> Iterator[int]:
        for number, item in enumerate(items):
            self._journal.start(item)
            yield number

    def _predict_batch(self, images: Images) -> Results:
        """Return the prediction of each image, or the reason of its failure.

        If several images fail together, each is predicted alone.
        """
        try:
            return self._predict(images)
        except Exception as error:  # models and pipelines raise many types
            is_full_disk = isinstance(error, OSError) and error.errno in FULL_DISK
            # torch reports at any point that a process that reads images died.
            if is_full_disk or "DataLoader worker" in str(error):
                raise  # it is no fault of the image
            failure = reason(error)
        # Outside of the handler, whose traceback holds the tensors of the batch.
        if self._predictor.device.startswith("cuda"):
            # Raises if this process can use the GPU no more, as after an illegal memory access.
            torch.cuda.synchronize(self._predictor.device)
        if len(images) > 1:
            results: Results = {}
            for item, pixels in images.items():
                results |= self._predict_batch({item: pixels})
            return results
        for item in images:
            shutil.rmtree(self._folder_of(item), ignore_errors=True)
        return dict.fromkeys(images, failure)

    def _predict(self, images: Images) -> Results:
        """Predict images together, without failures: an error raises."""
        if self._predictor.view is None:
            return dict(zip(images, self._predictor(list(images.values())), strict=True))
        results: Results = {}
        for item, pixels in images.items():
            with self._predictor.see(pixels, folder=self._folder_of(item)) as seen:
                results[item] = seen.result()
        return results

    def _folder_of(self, item: Item) -> Path:
        """Return the folder for what the trunk computes of an image."""
        return self._run.scratch / f"{item.checksum:08x}"

    def _record(self, item: Item, result: Prediction | str) -> None:
        if isinstance(result, str):
            self._journal.add(item, error=result)
            return
        height, width = result.image.shape[:2]
        fields: dict[str, Any] = dict(height=height, width=width)
        if self._run.drawing is not None:
            write_drawing(self._run.out, item.name, result, self._run.drawing)
        if result.segmentation is None:
            fields["objects"] = result.to_coco(item.id, self._run.category_ids)
        else:
            write_map(self._run.out, item.name, result.segmentation)
        self._journal.add(item, **fields)


def _read_batch(preprocess: Preprocessing, items: Sequence[Item]) -> tuple[Images, Results]:
    """Read images, and give the reasons why others cannot be read."""
    images: Images = {}
    failures: Results = {}
    for item in items:
        try:
            images[item] = preprocess.read(item.path)
        except Exception as error:  # decoders raise many types
            failures[item] = reason(error)
    return images, failures


def _stop_threads(worker: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork
