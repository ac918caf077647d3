"""Items to records: a process predicts items, and writes drawings, maps and its journal."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..utils.atomic import atomic_write
from ..utils.cli import print_line
from ..utils.errors import reason
from .journal import Entry, Journal, Progress, Stamp, file_stamp
from .listing import Item, drawing_name
from .prediction import Prediction
from .predictor import Predictor
from .preprocessing import Preprocessing
from .videos import iter_frames, write_video

LABELS = "labels"
VISUALIZATIONS = "visualizations"
MAX_DEATHS = 3  # of processes with one item in flight, after which it is not tried again
KILLER = "the process that predicts it dies or hangs: out of memory, or a decoder fails"
AGAIN = "the same command goes on"
TIMEOUT = 600  # seconds without an image from the processes that read


class InputError(Exception):
    """An error of an item: of its file, its pixels or its prediction."""


class ReaderDied(RuntimeError):
    """A process that reads images died or hangs."""


class ReadImage(NamedTuple):
    """An item with its pixels (H, W, C), or the reason why it cannot be read."""

    item: Item
    stamp: Stamp | None
    pixels: np.ndarray | None
    error: str | None


class Reader(Dataset):
    """A data set of images. One that cannot be read is a sample too."""

    def __init__(self, items: Sequence[Item], preprocess: Preprocessing) -> None:
        self.items = items
        self.preprocess = preprocess

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> ReadImage:
        item = self.items[number]
        stamp = None
        try:
            stamp = file_stamp(item.path)
            return ReadImage(item, stamp, self.preprocess.read(item.path), None)
        except Exception as error:  # decoders raise many types
            return ReadImage(item, stamp, None, reason(error))


def _without_threads(worker: int) -> None:
    cv2.setNumThreads(0)  # OpenCV's threads do not survive the fork


def _unchanged(image: ReadImage) -> ReadImage:
    return image


@dataclass
class Engine:
    """Predicts items into a folder.

    Attributes:
        out: The folder.
        category_ids: Ids of the classes in COCO results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        workers: Number of processes that read images. With 0, this process reads them.
        journal: The journal of this process.
    """

    out: Path
    predictor: Predictor
    category_ids: list[int]
    drawing: dict[str, Any] | None
    workers: int
    journal: Journal
    _readers: list[BaseProcess] = field(default_factory=list, init=False)

    def predict(
        self, items: Sequence[Item], progress: Progress, done: Callable[[int], object]
    ) -> None:
        """Predict items, and add a record of each to the journal.

        Args:
            progress: What the journals say. Items with which a process died are predicted last and
                alone. After `MAX_DEATHS` in which nothing else was in flight, they are failures.
            done: Function that is called with the number of completed items.

        Raises:
            ReaderDied: If a process that reads images died. It counts as a death.
            OSError: If a result cannot be written.
        """
        innocent = [item for item in items if item.path not in progress.deaths]
        suspects = [item for item in items if item.path in progress.deaths]
        suspects.sort(key=lambda item: progress.deaths[item.path])
        try:
            self._predict_images([item for item in innocent if not item.is_video], done)
            for video in (item for item in innocent if item.is_video):
                self._predict_video(video)
                done(1)
            if suspects and not innocent:
                self._warm_up()
            for item in suspects:
                self._predict_suspect(item, progress.lone_deaths[item.path])
                done(1)
        except OSError as error:  # the disk is full, say
            with suppress(OSError):
                self.journal.end()
            problem = error.strerror or error
            raise OSError(
                f"{self.out} cannot be written: {problem}; free space, and {AGAIN}"
            ) from error

    def _warm_up(self) -> None:
        """Run the model once. A suspect is then in flight for a short time, and a kill by chance
        rarely hits it again.
        """
        blank = np.zeros((64, 64, self.predictor.preprocess.channels), np.uint8)
        with suppress(Exception):  # a config may refuse it
            self.predictor(blank)

    def _predict_suspect(self, item: Item, lone_deaths: int) -> None:
        if lone_deaths >= MAX_DEATHS:
            self._add_error(item, None, KILLER)
        elif item.is_video:
            self._predict_video(item)
        else:
            self._predict_images([item], lambda count: None)

    def _predict_images(self, items: Sequence[Item], done: Callable[[int], object]) -> None:
        """Predict images in batches of one size."""
        for batch in self._iter_batches(self._iter_read(items)):
            for image, result in zip(batch, self._predict_batch(batch), strict=True):
                self._finish(image, result)
                done(1)

    def _iter_read(self, items: Sequence[Item]) -> Iterator[ReadImage]:
        """Read images in order."""

        def iter_started() -> Iterator[int]:
            for number, item in enumerate(items):
                self.journal.start(item)
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
        others = active_children()
        images = iter(loader)
        self._readers = [process for process in active_children() if process not in others]
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
            return [str(image.error) for image in batch]
        try:
            return list(self.predictor(pixels))
        except Exception as error:  # models and pipelines raise many types
            # torch raises the death of a reading process wherever this process is.
            if any(process.exitcode for process in self._readers):
                raise ReaderDied(f"{reason(error)}: {AGAIN}") from error
            if len(batch) == 1:
                return [reason(error)]
        return [result for image in batch for result in self._predict_batch([image])]

    def _finish(self, image: ReadImage, result: Prediction | str) -> None:
        """Write the drawing and the map of an image, and then its record."""
        if isinstance(result, str):
            self._add_error(image.item, image.stamp, result)
            return
        self.draw(image.item, [result])
        fields = self._store(image.item, result)
        self.journal.add(image.item, image.stamp, self.drawing, **fields)

    def _add_error(self, item: Item, stamp: Stamp | None, error: str) -> None:
        """Add the record of a failure. A video keeps the results of its frames."""
        if not item.is_video:
            self._remove_earlier_results(item)
        self.journal.add(item, stamp, None, error=error)

    def _remove_earlier_results(self, item: Item) -> None:
        """Remove the drawing and the maps of another file that the item's path led to."""
        for path in result_paths(self.out, item.name):
            path.unlink(missing_ok=True)

    def _predict_video(self, item: Item) -> None:
        """Predict a video, with a record for each frame and one for the video."""
        self.journal.start(item)
        self._remove_earlier_results(item)
        stamp = None
        count = 0

        def iter_stored() -> Iterator[Prediction]:
            nonlocal count
            for prediction in self._iter_video(item):
                self.journal.add_frame(count, **self._store(item, prediction, count))
                count += 1
                yield prediction

        try:
            stamp = _video_stamp(item.path)
            self.draw(item, iter_stored())
        except InputError as error:
            self._add_error(item, stamp, str(error))
        else:
            self.journal.add(item, stamp, self.drawing, frames=count)

    def _iter_video(self, item: Item) -> Iterator[Prediction]:
        """Predict the frames of a video. An error is an `InputError`."""
        try:
            frames = iter_frames(item.path)
            while batch := list(islice(frames, self.predictor.batch_size)):
                yield from self.predictor(batch)
        except Exception as error:  # decoders, models and pipelines raise many types
            raise InputError(reason(error)) from error

    def _store(self, item: Item, prediction: Prediction, frame: int | None = None) -> dict:
        """Write the map of a segmentor, and return the fields of a record."""
        height, width = prediction.image.shape[:2]
        fields: dict[str, Any] = dict(height=height, width=width)
        if prediction.segmentation is None:
            objects = prediction.to_coco(None, self.category_ids)
            for result in objects:
                del result["image_id"]  # ids are given when the results are merged
            return fields | dict(objects=objects)
        png = cv2.imencode(".png", prediction.segmentation)[1]
        path = map_path(self.out, item.name, frame)
        with atomic_write(path, self.journal.unfinished(".png")) as file:
            file.write(png.tobytes())
        return fields

    def draw(self, item: Item, predictions: Iterable[Prediction]) -> None:
        """Draw the prediction of an image, or those of a video's frames.

        Raises:
            OSError: If the drawing cannot be written.
        """
        if self.drawing is None:
            deque(predictions, maxlen=0)
            return
        options = self.drawing
        path = drawing_path(self.out, item.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.is_video:
            drawings = (prediction.draw(**options) for prediction in predictions)
            write_video(path, drawings, item.path, self.journal.unfinished(".mp4"))
            return
        for prediction in predictions:
            try:
                is_encoded, jpeg = cv2.imencode(".jpg", prediction.draw(**options))
            except ValueError as error:  # an image of other bands
                print_line(f"not drawn: {item.path}: {error}")
                continue
            if is_encoded:
                path.write_bytes(jpeg.tobytes())
            else:
                print_line(f"not drawn: {item.path}: too large for JPEG")

    def draw_again(self, entry: Entry) -> None:
        """Draw a stored result with the present options, without another prediction.

        Raises:
            InputError: If the file has vanished or changed.
            OSError: If the drawing cannot be written.
        """
        assert self.drawing is not None
        self.draw(entry.item, self._iter_stored(entry))
        self.journal.note_drawn(entry.item, self.drawing)

    def _iter_stored(self, entry: Entry) -> Iterator[Prediction]:
        """Yield the stored prediction of an image, or those of a video's frames."""
        item = entry.item
        try:
            if file_stamp(item.path) != entry.stamp:
                raise ValueError(f"{item.path} has changed or vanished")
            images: Iterable[np.ndarray] = (
                iter_frames(item.path)
                if item.is_video
                else [self.predictor.preprocess.read(item.path)]
            )
            for record, image in zip(entry.iter_results(), images, strict=True):
                yield self._restore(item, record, image)
        except Exception as error:
            raise InputError(reason(error)) from error

    def _restore(self, item: Item, record: dict[str, Any], image: np.ndarray) -> Prediction:
        """Return the stored prediction of an image or a frame."""
        names = self.predictor.names
        palette = self.predictor.metainfo.get("palette")
        if self.predictor.is_detector:
            objects = record["objects"]
            return Prediction.from_coco(objects, image, names, self.category_ids, palette)
        content = np.fromfile(map_path(self.out, item.name, record.get("frame")), np.uint8)
        segmentation = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
        return Prediction(image, None, segmentation, names, palette)


def _video_stamp(path: str) -> Stamp | None:
    try:
        return file_stamp(path)
    except ValueError as error:
        raise InputError(reason(error)) from error


def drawing_path(out: Path, name: str) -> Path:
    """Return the path of an item's drawing."""
    return out / VISUALIZATIONS / drawing_name(name)


def map_path(out: Path, name: str, frame: int | None = None) -> Path:
    """Return the path of an image's segmentation map, or of that of a video's frame."""
    return out / LABELS / (f"{name}.png" if frame is None else f"{name}/{frame:06}.png")


def result_paths(out: Path, name: str) -> Iterator[Path]:
    """Yield the paths of the drawing and the maps that an item has, or may have."""
    yield drawing_path(out, name)
    yield map_path(out, name)
    yield from (out / LABELS / name).glob("[0-9][0-9][0-9][0-9][0-9][0-9]*.png")
