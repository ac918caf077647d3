"""A process that predicts items into the folder of a run: records, segmentation maps and drawings."""

from collections.abc import Callable, Iterator, Sequence
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
from .folder import LABELS, VISUALIZATIONS, frame_id
from .listing import Item, drawing_name
from .prediction import Prediction
from .predictor import Predictor
from .reading import TIMEOUT, Reader, iter_predictions, load
from .records import PARTS, InFlight, PartWriter, Place, record_line
from .results import Instances
from .videos import iter_frames, write_video

KILLER = "the process that predicts it dies or hangs: out of memory, or a decoder fails"


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
            deaths: How many processes died with an item in flight. These items come first, each alone.
            done: Function that is called with the number of completed items.

        Raises:
            RuntimeError: If a process that reads images died. The next start finds the image.
        """
        writer, flight = PartWriter(self.out, name), InFlight(self.out, name, deaths)
        groups = [([item], min(self.workers, 1)) for item in items if item.path in deaths]
        groups.append(([item for item in items if item.path not in deaths], self.workers))
        try:
            for group, workers in groups:
                if group and self._is_killer(group[0], deaths.get(group[0].path, 0)):
                    writer.add(group[0], error=KILLER)
                    done(1)
                    continue
                images = Reader([item for item in group if not item.is_video], self.predictor)
                for item, found in iter_predictions(self.predictor, load(images, workers, flight.mark)):
                    self._store(writer, item, found)
                    flight.mark(item)
                    done(1)
                for item in [item for item in group if item.is_video]:
                    flight.mark(item)
                    self._predict_video(item, self.out / PARTS / f"{name}-{item.id}.jsonl")
                    flight.mark(item)
                    done(1)
        finally:
            writer.flush()
        flight.close()

    def _is_killer(self, item: Item, deaths: int) -> bool:
        """Return whether an item kills its process. After two deaths, which may have other reasons, a process tries."""
        if deaths != 2:
            return deaths > 2
        context = spawn(_predict_alone, (self.predictor.arguments, item), join=False)
        try:
            return not context.join(TIMEOUT)
        except ProcessExitedException:
            return True
        except ProcessRaisedException:  # an error of the image or the model, which has its record
            return False
        finally:
            for process in context.processes:
                process.kill()

    def _store(self, writer: PartWriter, item: Item, found: Prediction | str) -> None:
        """Write the files of an image and add its record, or the record of its failure."""
        fields = dict(error=found) if isinstance(found, str) else self._fields(item, found)
        if self.drawing is not None and not isinstance(found, str):
            self._draw(item, found)
        writer.add(item, **fields)

    def _fields(self, item: Item, found: Prediction, frame: int | None = None) -> dict[str, Any]:
        """Return the fields of a record, and write the map of a segmentor."""
        size = height, width = found.image.shape[:2]
        fields: dict[str, Any] = dict(height=height, width=width) | ({} if frame is None else dict(frame=frame))
        if found.instances is not None:
            return fields | dict(objects=found.instances.to_coco(size, frame_id(item.id, frame), self.category_ids))
        assert found.segmentation is not None
        with atomic_write(self._map_path(item, frame)) as file:
            file.write(cv2.imencode(".png", found.segmentation)[1].tobytes())
        return fields

    def _map_path(self, item: Item, frame: int | None) -> Path:
        return self.out / LABELS / (f"{item.name}.png" if frame is None else f"{item.name}/{frame:06}.png")

    def _draw(self, item: Item, found: Prediction) -> None:
        success, jpeg = cv2.imencode(".jpg", found.draw(**self.drawing or {}))
        if not success:
            raise ValueError("the image is too large for JPEG")
        path = self.out / VISUALIZATIONS / drawing_name(item.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg.tobytes())

    def _predict_video(self, item: Item, part: Path) -> None:
        """Predict a video into a part file of its own, which ends with the reason if a frame fails."""

        def iter_predicted() -> Iterator[Prediction]:
            frames, number = iter_frames(item.path), 0
            while batch := list(islice(frames, self.predictor.batch_size)):
                for found in self.predictor(batch):
                    file.write(record_line(item, **self._fields(item, found, number)))
                    yield found
                    number += 1

        with atomic_write(part) as file:
            try:
                self._draw_video(item, iter_predicted())
            except Exception as error:  # decoders, models and pipelines raise many types
                file.write(record_line(item, error=reason(error)))

    def _draw_video(self, item: Item, predictions: Iterator[Prediction]) -> None:
        if self.drawing is None:
            for _ in predictions:
                pass
        else:
            path, drawing = self.out / VISUALIZATIONS / drawing_name(item.name), self.drawing
            write_video(path, (found.draw(**drawing) for found in predictions), item.path)

    def redraw(self, places: Sequence[Place]) -> None:
        """Draw stored results again, or report why they cannot be drawn. Those of a video follow each other."""
        for item, group in groupby(places, key=lambda place: place.item):
            stored = list(group)
            try:
                if item.is_video:
                    frames = zip(stored, iter_frames(item.path), strict=False)  # a damaged video has fewer records
                    self._draw_video(item, (self._load(place, frame) for place, frame in frames))
                else:
                    self._draw(item, self._load(stored[0], self.predictor.preprocess.read(item.path)))
            except Exception as error:  # files may have vanished or changed
                print_line(f"not drawn: {item.path}: {reason(error)}")

    def _load(self, place: Place, image: np.ndarray) -> Prediction:
        """Return a stored prediction, for its image."""
        record, names, palette = place.read(), self.predictor.names, self.predictor.metainfo.get("palette")
        if image.shape[:2] != (record["height"], record["width"]):
            raise ValueError(f"the image has {image.shape[:2]} pixels, its record {record['height'], record['width']}")
        if not self.predictor.is_detector:
            content = np.frombuffer(self._map_path(place.item, place.frame).read_bytes(), np.uint8)
            return Prediction(image, None, cv2.imdecode(content, cv2.IMREAD_UNCHANGED), names, palette)
        objects = record["objects"]
        boxes = np.array([found["bbox"] for found in objects], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([self.category_ids.index(found["category_id"]) for found in objects], int)
        masks = [found["segmentation"] for found in objects if "segmentation" in found]
        scores = np.array([found["score"] for found in objects])
        found = Instances(boxes, scores, labels, masks if len(masks) == len(objects) else None)
        return Prediction(image, found, None, names, palette)


def _predict_alone(rank: int, arguments: dict[str, Any], item: Item) -> None:
    """Predict an item in another process, by a model of its own."""
    predictor = Predictor(**arguments)
    for image in iter_frames(item.path) if item.is_video else [item.path]:
        predictor(image)
