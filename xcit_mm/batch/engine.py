"""Parts of a run predicted: beside the model, processes prepare images, and threads draw and encode what it finds."""

import contextlib
import resource
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..prediction.drawing import Style, draw_instances, draw_segmentation_map
from ..prediction.predictor import Prediction, Predictor, Preprocessing
from ..prediction.results import encode_masks
from .inputs import Input, Video, read_image
from .manifest import LABELS, PICTURES, Run
from .shards import Row, Writer

__all__ = ["Engine"]

_THREADS = 2
# Images that are being drawn and encoded, or wait for it: each is held in memory.
_AHEAD = 2 * _THREADS


class _Task(NamedTuple):
    """An input to predict, and the part that it belongs to."""

    part: int
    number: int
    given: Input


class _Loaded(NamedTuple):
    """An image that was read; a video is not.

    Attributes:
        task: What was to be read.
        size: Height and width.
        image: (H, W, 3), if it is to be drawn on or cut into tiles.
        data: What the model takes, unless there are tiles.
        error: Why it could not be read.
    """

    task: _Task
    size: tuple[int, int] = (0, 0)
    image: Tensor | None = None
    data: dict[str, Any] | None = None
    error: str | None = None


class _Loading(Dataset):
    """Reads and prepares what a sampler names, in a worker."""

    def __init__(self, prepare: Preprocessing | None, keep_image: bool) -> None:
        self._prepare, self._keep_image = prepare, keep_image

    def __getitem__(self, task: _Task) -> _Loaded:
        if task.given.is_video or task.given.size is not None:
            return _Loaded(task)
        try:
            image = read_image(task.given.path)
            data = self._prepare(image) if self._prepare else None
        except Exception as error:  # decoders and transforms raise nearly anything: the other images are done
            return _Loaded(task, error=_reason(error))
        # Tensors come through shared memory, arrays through a pipe.
        return _Loaded(task, image.shape[:2], torch.from_numpy(image) if self._keep_image else None, data)


class Engine:
    """Predicts parts of a run; whatever calls it, the same parts give the same files.

    Args:
        run: The run.
        predict: Its model.
        workers: Processes that read and prepare images; 0: this one does.
        retry: Of parts that are done, predict what has failed, and keep the rest.
        progress: Called with a number of inputs that are done, and the frames of the video that is under way.
    """

    def __init__(
        self, run: Run, predict: Predictor, workers: int, retry: bool, progress: Callable[[int, int], None]
    ) -> None:
        self.run, self.predict, self.workers, self.retry, self.progress = run, predict, workers, retry, progress
        options = run.options
        self.score_thr, self.pictures = options["score_thr"], options["pictures"]
        self.style = Style(options["alpha"], options["labels"], options["color_by"])
        self.classes, self.palette = predict.metainfo["classes"], predict.metainfo.get("palette")
        self.batch_size = predict.batch_size
        self._scenes: Any = None

    def work(self, parts: Iterable[int]) -> None:
        """Predict parts, which are asked for one by one, a little before they are due.

        Raises:
            OSError: If results cannot be written.
            RuntimeError: If a process that prepares images was killed.
        """
        in_tiles = self.predict.tile is not None
        at_once = 1 if in_tiles else self.batch_size
        _allow_open_files()
        loader: Iterable[_Loaded] = DataLoader(
            _Loading(None if in_tiles else self.predict.preprocess, self.pictures or in_tiles),
            batch_size=None,
            sampler=self._tasks(parts),
            num_workers=self.workers,
            prefetch_factor=max(2, -(-2 * at_once // self.workers)) if self.workers else None,
            worker_init_fn=_ignore_interrupts,
        )
        with ThreadPoolExecutor(_THREADS) as pool:
            for part, images in groupby(loader, key=lambda one: one.task.part):
                self._predict_part(part, images, pool)

    def _tasks(self, parts: Iterable[int]) -> Iterator[_Task]:
        for part in parts:
            kept = self._kept(part)
            for number in self.run.parts[part].inputs:
                if number not in kept:
                    yield _Task(part, number, self.run.inputs[number])

    def _kept(self, part: int) -> dict[int, list[Row]]:
        return self.run.kept(part) if self.retry else {}

    def _predict_part(self, part: int, images: Iterator[_Loaded], pool: ThreadPoolExecutor) -> None:
        kept = self._kept(part)
        with self.run.writing(part) as writer:
            in_order = _InOrder(writer, self.run.parts[part].inputs)
            for number, rows in kept.items():
                in_order.put(number, rows)
            finishing: deque[tuple[int, Future[Row]]] = deque()

            def put_first() -> None:
                number, future = finishing.popleft()
                in_order.put(number, [future.result()])
                self.progress(1, 0)

            with in_order.whatever_is_there(), _emptied(finishing, put_first):
                for one, found in self._predicted(images):
                    if one.task.given.size is not None:
                        self._predict_scene(part, writer)
                        in_order.put(one.task.number, [])
                        continue
                    if one.task.given.is_video:
                        self._predict_video(one.task, writer, pool)
                        in_order.put(one.task.number, [])
                        self.progress(1, 0)
                        continue
                    finishing.append((one.task.number, pool.submit(self._finish, one.task, one.size, found)))
                    while len(finishing) > _AHEAD:
                        put_first()

    def _predicted(self, images: Iterable[_Loaded]) -> Iterator[tuple[_Loaded, Prediction | str]]:
        """Images with what was found in them, or the reason why nothing was; those of one size go together."""
        held: dict[tuple[int, ...], list[_Loaded]] = {}
        for one in images:
            if one.error is not None or one.task.given.is_video or one.task.given.size is not None:
                yield one, one.error or ""
            elif one.data is None:
                assert one.image is not None  # for tiles it is kept
                yield one, self._attempt(self.predict.predict, one.image.numpy())
            else:
                size = tuple(one.data["inputs"].shape)
                held.setdefault(size, []).append(one)
                if len(held[size]) == self.batch_size:
                    yield from self._predict_batch(held.pop(size))
                elif sum(map(len, held.values())) >= 4 * self.batch_size:  # of many sizes: they are all in memory
                    yield from self._predict_batch(held.pop(max(held, key=lambda size: len(held[size]))))
        for batch in held.values():
            yield from self._predict_batch(batch)

    def _predict_batch(self, batch: list[_Loaded]) -> Iterator[tuple[_Loaded, Prediction | str]]:
        def together(images: list[_Loaded]) -> list[Prediction]:
            samples = self.predict.predict_preprocessed([one.data for one in images if one.data])
            return [self._plain(one.image, sample) for one, sample in zip(images, samples, strict=True)]

        found = self._attempt(together, batch)
        if not isinstance(found, str):
            yield from zip(batch, found, strict=True)
        elif len(batch) == 1:
            yield batch[0], found
        else:  # one of them is at fault
            for one in batch:
                yield from self._predict_batch([one])

    def _plain(self, image: Tensor | None, sample: BaseDataElement) -> Prediction:
        return self.predict.to_prediction(np.empty((0, 0, 3), np.uint8) if image is None else image.numpy(), sample)

    def _attempt(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """A function's result, or the reason why it has none."""
        try:
            return function(argument)
        except Exception as error:  # of any model and pipeline
            return _reason(error)

    def _finish(self, task: _Task, size: tuple[int, int], found: Prediction | str) -> Row:
        """The row of an image, whose picture and segmentation map are written."""
        row = Row(task.number, task.given.path, task.given.name, task.given.image_id)
        if isinstance(found, str):
            return row._replace(error=found)
        if self.pictures:
            path = self.run.out / PICTURES / f"{task.given.key}.jpg"
            encoded = self._attempt(lambda found: _encode_jpeg(self._draw(found)), found)
            if isinstance(encoded, str):
                return row._replace(error=f"its picture: {encoded}")
            _write(path, encoded)
        return self._filled(row, size, found, task.given.key)

    def _filled(self, row: Row, size: tuple[int, int], found: Prediction, key: str) -> Row:
        row = row._replace(height=size[0], width=size[1])
        if found.instances is not None:
            boxes, scores, labels, _ = found.instances
            codes = encode_masks(found.instances)
            return row._replace(boxes=boxes.tolist(), scores=scores.tolist(), labels=labels.tolist(), masks=codes)
        assert found.labels is not None  # one of the two is given
        png = cv2.imencode(".png", found.labels)[1].tobytes()
        if self.run.options["format"] == "parquet":
            return row._replace(segmentation_map=png)
        _write(self.run.out / LABELS / f"{key}.png", png)
        return row

    def _draw(self, found: Prediction) -> np.ndarray:
        drawing = self.classes, self.palette, self.style
        if found.instances is not None:
            return draw_instances(found.image, found.instances.above(self.score_thr), *drawing)
        assert found.labels is not None
        return draw_segmentation_map(found.image, found.labels, *drawing)

    def _predict_scene(self, part: int, writer: Writer) -> None:
        if self._scenes is None:
            from .rasters import ScenePredictor  # what it needs is an extra

            self._scenes = ScenePredictor(self.run, self.predict, lambda: self.progress(1, 0))
        self._scenes.work(part, writer)

    def _predict_video(self, task: _Task, writer: Writer, pool: ThreadPoolExecutor) -> None:
        """Write the rows of a video's frames as they come, and its film."""
        given, film, error = task.given, None, None
        row = Row(task.number, given.path, given.name, given.image_id)
        finishing: deque[Future[tuple[Row, np.ndarray | str | None]]] = deque()

        def finish(frame: int, found: Prediction) -> tuple[Row, np.ndarray | str | None]:
            # Beside a video no folder can have its name: frames and images never meet.
            filled = self._filled(row._replace(frame=frame), found.image.shape[:2], found, f"{given.name}/{frame:06}")
            return filled, self._attempt(self._draw, found) if self.pictures else None

        def write_first() -> None:
            nonlocal film
            filled, picture = finishing.popleft().result()
            if isinstance(picture, str):
                raise _NoFilm(picture)
            if picture is not None:
                film = film or self._open_film(given, picture)
                film.write(picture)
            writer.write(filled)

        try:
            with _emptied(finishing, write_first):
                for frame, found in enumerate(self._predicted_frames(given)):
                    if isinstance(found, str):
                        error = found
                        break
                    finishing.append(pool.submit(finish, frame, found))
                    self.progress(0, frame + 1)
                    while len(finishing) > _AHEAD:
                        write_first()
        except _NoFilm as reason:
            error = f"its picture: {reason}"
        finally:
            if film is not None:
                film.release()
        if error is not None:
            writer.write(row._replace(error=error))

    def _predicted_frames(self, given: Input) -> Iterator[Prediction | str]:
        """What was found in a video's frames; the reason, where there is no going on."""
        try:
            frames = iter(Video(given.path))
            while batch := list(islice(frames, self.batch_size)):
                if self.predict.tile is not None:
                    yield from map(self.predict.predict, batch)
                else:
                    samples = self.predict.predict_preprocessed([self.predict.preprocess(frame) for frame in batch])
                    yield from map(self.predict.to_prediction, batch, samples)
        except Exception as error:  # of any decoder, model and pipeline
            yield _reason(error)

    def _open_film(self, given: Input, picture: np.ndarray) -> cv2.VideoWriter:
        path = self.run.out / PICTURES / f"{given.key}.mp4"
        _write(path, b"")  # a full disk or a missing permission is its own error
        rate = Video(given.path).rate
        film = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, picture.shape[1::-1])
        if not film.isOpened():
            height, width = picture.shape[:2]
            raise _NoFilm(f"MP4 has no room for {height}x{width} pixels at {rate:g} frames a second")
        return film


class _NoFilm(Exception):
    """A video's frames are not such as films are made of."""


@contextlib.contextmanager
def _emptied(queue: deque, take_first: Callable[[], None]) -> Iterator[None]:
    """What is left in a queue is taken at the end, after Ctrl-C too: it was predicted."""
    stopped = None
    try:
        yield
    except KeyboardInterrupt as error:
        stopped = error
    while queue:
        take_first()
    if stopped:
        raise stopped


class _InOrder:
    """Hands on rows in the order of their inputs, whichever comes first."""

    def __init__(self, writer: Writer, numbers: Iterable[int]) -> None:
        self._writer, self._numbers = writer, deque(numbers)
        self._waiting: dict[int, list[Row]] = {}

    def put(self, number: int, rows: list[Row]) -> None:
        self._waiting[number] = rows
        self._hand_on()

    def _hand_on(self) -> None:
        while self._numbers and self._numbers[0] in self._waiting:
            for row in self._waiting.pop(self._numbers.popleft()):
                self._writer.write(row)

    @contextlib.contextmanager
    def whatever_is_there(self) -> Iterator[None]:
        """After Ctrl-C, hands on what waits for inputs that will not come."""
        try:
            yield
        except KeyboardInterrupt:
            self._numbers = deque(number for number in self._numbers if number in self._waiting)
            self._hand_on()
            raise


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C is for the process that writes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _allow_open_files() -> None:
    """As many as the system lets this process have: each tensor that a worker hands over is one."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # of systems with another limit of their own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _reason(error: Exception) -> str:
    """In one line, why an image or a video fails; an error that is none of theirs is raised again."""
    if str(error).startswith("DataLoader worker"):  # was killed: torch says so wherever this process is just then
        raise error
    return " ".join(str(error).split()) or type(error).__name__


def _encode_jpeg(picture: np.ndarray) -> bytes:
    there, encoded = cv2.imencode(".jpg", picture)
    if not there:
        raise ValueError("JPEG has no room for it")
    return encoded.tobytes()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
