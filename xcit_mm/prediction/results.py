"""Drawings and maps in a folder of predictions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2

from ..utils.atomic import atomic_write
from ..utils.cli import print_line
from .items import Item, drawing_name
from .journal import Journal
from .prediction import Prediction
from .predictor import Predictor
from .videos import write_video

LABELS = "labels"
VISUALIZATIONS = "visualizations"


def drawing_path(out: Path, name: str) -> Path:
    return out / VISUALIZATIONS / drawing_name(name)


def map_path(out: Path, name: str, frame: int | None = None) -> Path:
    return out / LABELS / (f"{name}.png" if frame is None else f"{name}/{frame:06}.png")


def result_paths(out: Path, name: str) -> Iterator[Path]:
    """Yield the paths of all drawings and maps that an item may have."""
    yield drawing_path(out, name)
    yield map_path(out, name)
    yield from (out / LABELS / name).glob("[0-9][0-9][0-9][0-9][0-9][0-9]*.png")


@dataclass
class Results:
    """Writes drawings and maps into the folder `out`.

    Attributes:
        category_ids: Ids of the classes in COCO results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        journal: The journal of this process.
    """

    out: Path
    predictor: Predictor
    category_ids: list[int]
    drawing: dict[str, Any] | None
    journal: Journal

    def remove(self, item: Item) -> None:
        for path in result_paths(self.out, item.name):
            path.unlink(missing_ok=True)

    def store(self, item: Item, prediction: Prediction, frame: int | None = None) -> dict[str, Any]:
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

    def draw(self, item: Item, prediction: Prediction) -> None:
        """Draw the prediction of an image. A line says so if it cannot be drawn."""
        if self.drawing is None:
            return
        try:
            is_encoded, jpeg = cv2.imencode(".jpg", prediction.draw(**self.drawing))
            problem = "" if is_encoded else "too large for JPEG"
        except ValueError as error:  # the image has bands other than BGR
            problem = str(error)
        if problem:
            print_line(f"not drawn: {item.path}: {problem}")
            return
        path = drawing_path(self.out, item.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg.tobytes())

    def draw_video(self, item: Item, predictions: Iterable[Prediction]) -> int:
        """Draw the predictions of a video's frames, and return their number."""
        if self.drawing is None:
            return sum(1 for _ in predictions)
        options = self.drawing
        drawings = (prediction.draw(**options) for prediction in predictions)
        path = drawing_path(self.out, item.name)
        return write_video(path, drawings, item.path, self.journal.unfinished(".mp4"))
