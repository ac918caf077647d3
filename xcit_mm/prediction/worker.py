"""A process that predicts items into the folder of a run: records, segmentation maps and drawings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, spawn

from ..utils.atomic import atomic_write
from ..utils.cli import print_line
from ..utils.errors import reason
from .listing import Item, drawing_name
from .prediction import Instances, Prediction
from .predictor import Predictor
from .reading import TIMEOUT, Reader, iter_predictions, load
from .records import Writer, item_of, iter_records, record_line
from .videos import iter_frames, write_video

KILLER = "the process that predicts it dies or hangs: out of memory, or a decoder fails"
LABELS, VISUALIZATIONS = "labels", "visualizations"


@dataclass
class Worker:
    """Predicts items into the folder `out`.

    Attributes:
        category_ids: Ids of the classes in COCO results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        workers: Number of processes that read images. With 0, this process reads them.
    """

    out: Path
    predictor: Predictor
    category_ids: list[int]
    drawing: dict[str, Any] | None
    workers: int

    def predict(self, items: list[Item], name: str, deaths: dict[str, int], done: Callable[[int], object]) -> None:
        """Predict items, and write their records to part files whose names begin with `name`.

        Args:
            deaths: How many processes died with an item in flight. Each of these is predicted alone: first those of one
                death; last the others, if another process has survived them.
            done: Function that is called with the number of completed items.

        Raises:
            RuntimeError: If a process that reads images died. The next start finds the image.
        """
        groups: list[list[Item]] = [[], [], []]
        for item in items:
            groups[min(deaths.get(item.path, 0), 2)].append(item)
        others, once, twice = groups
        with Writer(self.out, name, deaths) as writer:
            for item in once:
                self._predict(writer, [item], min(self.workers, 1), done)
            self._predict(writer, others, self.workers, done)
            for item in twice:
                if self._is_killer(item):
                    writer.add(item, error=KILLER)
                    done(1)
                else:
                    self._predict(writer, [item], min(self.workers, 1), done)

    def _predict(self, writer: Writer, items: list[Item], workers: int, done: Callable[[int], object]) -> None:
        reader = Reader([item for item in items if not item.is_video], self.predictor)
        for item, found in iter_predictions(self.predictor, load(reader, workers, writer.mark)):
            if isinstance(found, Prediction):
                writer.add(item, **self._fields(item, found))
                self._draw(item, [found])
            else:
                writer.add(item, error=found)
            writer.mark(item)
            done(1)
        for item in [item for item in items if item.is_video]:
            writer.mark(item)
            self._predict_video(item, writer.new_part())
            writer.mark(item)
            done(1)

    def _is_killer(self, item: Item) -> bool:
        """Return whether a process dies of an item or hangs. Two that died may have had other reasons."""
        context = spawn(_predict_alone, (self.predictor.arguments, item), join=False)
        try:
            return not context.join(None if item.is_video else TIMEOUT)
        except ProcessExitedException:
            return True
        except ProcessRaisedException:  # an error of the image or the model, which has its record
            return False
        finally:
            for process in context.processes:
                process.kill()

    def _predict_video(self, item: Item, part: Path) -> None:
        """Predict a video into a part file of its own, which ends with the reason if a frame fails."""

        def iter_predicted() -> Iterator[Prediction]:
            frames, number = iter_frames(item.path), 0
            while batch := list(islice(frames, self.predictor.batch_size)):
                for found in self.predictor(batch):
                    file.write(record_line(item, frame=number, **self._fields(item, found, number)))
                    yield found
                    number += 1

        with atomic_write(part) as file:
            try:
                self._draw(item, iter_predicted())
            except Exception as error:  # decoders, models and pipelines raise many types
                file.write(record_line(item, error=reason(error)))

    def _fields(self, item: Item, found: Prediction, frame: int | None = None) -> dict[str, Any]:
        """Return the fields of a record, and write the map of a segmentor."""
        height, width = found.image.shape[:2]
        fields = dict(height=height, width=width)
        if found.segmentation is None:
            return fields | dict(objects=found.to_coco(frame_id(item.id, frame), self.category_ids))
        with atomic_write(self._map_path(item, frame)) as file:
            file.write(cv2.imencode(".png", found.segmentation)[1].tobytes())
        return fields

    def _map_path(self, item: Item, frame: int | None) -> Path:
        return self.out / LABELS / (f"{item.name}.png" if frame is None else f"{item.name}/{frame:06}.png")

    def _draw(self, item: Item, predictions: Iterable[Prediction]) -> None:
        """Draw the prediction of an image or those of a video's frames, or only run through them."""
        path, drawing = self.out / VISUALIZATIONS / drawing_name(item.name), self.drawing
        if drawing is None:
            for _ in predictions:
                pass
            return
        drawn = (found.draw(**drawing) for found in predictions)
        if item.is_video:
            write_video(path, drawn, item.path)
            return
        for success, jpeg in (cv2.imencode(".jpg", picture) for picture in drawn):
            if success:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpeg.tobytes())
            else:
                print_line(f"not drawn: {item.path}: too large for JPEG")

    def redraw(self) -> None:
        """Draw all stored results, or report why one cannot be drawn."""
        for item, records in groupby(iter_records(self.out), key=item_of):
            images = iter_frames(item.path) if item.is_video else map(self.predictor.preprocess.read, [item.path])
            found = (record for record in records if "error" not in record)
            try:
                self._draw(item, map(self._stored, found, images))
            except Exception as error:  # files may have vanished or changed
                print_line(f"not drawn: {item.path}: {reason(error)}")

    def _stored(self, record: dict[str, Any], image: np.ndarray) -> Prediction:
        """Return a stored prediction, for its image."""
        names, palette = self.predictor.names, self.predictor.metainfo.get("palette")
        if image.shape[:2] != (record["height"], record["width"]):
            raise ValueError(f"the image has {image.shape[:2]} pixels, its record {record['height'], record['width']}")
        if not self.predictor.is_detector:
            content = np.fromfile(self._map_path(item_of(record), record.get("frame")), np.uint8)
            return Prediction(image, None, cv2.imdecode(content, cv2.IMREAD_UNCHANGED), names, palette)
        found = Instances.from_coco(record["objects"], self.category_ids)
        return Prediction(image, found, None, names, palette)


def frame_id(id_: int | str | None, frame: int | None) -> int | str | None:
    """Return the id of an image, or of a frame: one more than that of its video, and nine digits of the frame."""
    return id_ if frame is None else (id_ + 1) * 10**9 + frame if isinstance(id_, int) else f"{id_}/{frame}"


def _predict_alone(rank: int, arguments: dict[str, Any], item: Item) -> None:
    """Predict an item in another process, by a model of its own."""
    predictor = Predictor(**arguments)
    for image in iter_frames(item.path) if item.is_video else [item.path]:
        predictor(image)
