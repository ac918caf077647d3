"""A process that predicts items into the folder of a run: records, segmentation maps and drawings."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import supervision as sv
from pycocotools import mask as rle

from ..utils.atomic import atomic_write
from ..utils.cli import print_line
from ..utils.errors import reason
from .listing import Item, drawing_name
from .prediction import Prediction
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

    def predict(
        self, items: list[Item], name: str, deaths: dict[str, int], done: Callable[[int], object]
    ) -> None:
        """Predict items, and write their records to part files whose names begin with `name`.

        Args:
            deaths: How many processes died with an item in flight. Each of these is predicted last
                and alone; after two deaths only if another process has survived it.
            done: Function that is called with the number of completed items.

        Raises:
            RuntimeError: If a process that reads images died. The next start finds the image.
        """
        suspects = sorted(
            (item for item in items if item.path in deaths), key=lambda item: deaths[item.path]
        )
        with Writer(self.out, name, deaths) as writer:
            self._predict(
                writer, [item for item in items if item.path not in deaths], self.workers, done
            )
            for item in suspects:
                if deaths[item.path] > 1 and self._is_killer(item):
                    writer.add(item, error=KILLER)
                    done(1)
                else:
                    self._predict(writer, [item], min(self.workers, 1), done)

    def _predict(
        self, writer: Writer, items: list[Item], workers: int, done: Callable[[int], object]
    ) -> None:
        reader = Reader([item for item in items if not item.is_video], self.predictor)
        for item, found in iter_predictions(self.predictor, load(reader, workers, writer.mark)):
            if isinstance(found, Prediction):
                self._draw(item, [found])  # first, since what has a record is done
                writer.add(item, **self._fields(item, found))
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
        """Return whether a process dies of an item or hangs. Two that died may have had other
        reasons.
        """
        process = get_context("spawn").Process(
            target=_predict_alone, args=(self.predictor.arguments, item)
        )
        process.start()
        process.join(None if item.is_video else TIMEOUT)
        code = process.exitcode
        process.kill()
        return code != 0

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
        return (
            self.out
            / LABELS
            / (f"{item.name}.png" if frame is None else f"{item.name}/{frame:06}.png")
        )

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
            images = (
                iter_frames(item.path)
                if item.is_video
                else map(self.predictor.preprocess.read, [item.path])
            )
            found = (record for record in records if "error" not in record)
            try:
                self._draw(item, map(self._stored, found, images))
            except Exception as error:  # files may have vanished or changed
                print_line(f"not drawn: {item.path}: {reason(error)}")

    def _stored(self, record: dict[str, Any], image: np.ndarray) -> Prediction:
        """Return a stored prediction, for its image."""
        names, palette, size = (
            self.predictor.names,
            self.predictor.metainfo.get("palette"),
            image.shape[:2],
        )
        if size != (record["height"], record["width"]):
            raise ValueError(
                f"the image has {size} pixels, its record {record['height'], record['width']}"
            )
        if not self.predictor.is_detector:
            content = np.fromfile(self._map_path(item_of(record), record.get("frame")), np.uint8)
            return Prediction(
                image, None, cv2.imdecode(content, cv2.IMREAD_UNCHANGED), names, palette
            )
        objects = record["objects"]
        boxes = _corners([each["bbox"] for each in objects])
        codes = [each["segmentation"] for each in objects if "segmentation" in each]
        masks = (
            sv.CompactMask.from_coco_rle(codes, _corners(rle.toBbox(codes)) - (0, 0, 1, 1), size)
            if codes
            else None
        )
        scores = np.array([each["score"] for each in objects])
        labels = np.array([self.category_ids.index(each["category_id"]) for each in objects], int)
        return Prediction(image, sv.Detections(boxes, masks, scores, labels), None, names, palette)


def _corners(boxes: Any) -> np.ndarray:
    """Convert COCO's boxes (n, 4), left, top, width and height, to left, top, right and bottom."""
    left, top, width, height = np.array(boxes, np.float32).reshape(-1, 4).T
    return np.stack([left, top, left + width, top + height], axis=1)


def frame_id(id_: int | str | None, frame: int | None) -> int | str | None:
    """Return the id of an image, or of a frame: one more than that of its video, and nine digits of
    the frame.
    """
    return (
        id_
        if frame is None
        else (id_ + 1) * 10**9 + frame
        if isinstance(id_, int)
        else f"{id_}/{frame}"
    )


def _predict_alone(arguments: dict[str, Any], item: Item) -> None:
    """Predict an item in another process, by a model of its own. An error is no death: it has its
    record later.
    """
    with suppress(Exception):  # a second model may also not fit into the memory
        predictor = Predictor(**arguments)
        for image in iter_frames(item.path) if item.is_video else [item.path]:
            predictor(image)
