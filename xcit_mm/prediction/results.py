"""Drawings and maps in a folder of predictions."""

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

LABELS = "labels"
VISUALIZATIONS = "visualizations"


def drawing_path(out: Path, name: str) -> Path:
    return out / VISUALIZATIONS / drawing_name(name)


def map_path(out: Path, name: str) -> Path:
    return out / LABELS / f"{name}.png"


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
        drawing_path(self.out, item.name).unlink(missing_ok=True)
        map_path(self.out, item.name).unlink(missing_ok=True)

    def store(self, item: Item, prediction: Prediction) -> dict[str, Any]:
        """Write the map of a segmentor, and return the fields of a record."""
        height, width = prediction.image.shape[:2]
        fields: dict[str, Any] = dict(height=height, width=width)
        if prediction.segmentation is None:
            objects = prediction.to_coco(None, self.category_ids)
            for result in objects:
                del result["image_id"]  # ids are given when the results are merged
            return fields | dict(objects=objects)
        png = cv2.imencode(".png", prediction.segmentation)[1]
        with atomic_write(map_path(self.out, item.name), self.journal.unfinished) as file:
            file.write(png.tobytes())
        return fields

    def draw(self, item: Item, prediction: Prediction) -> None:
        """Draw a prediction. A line says so if it cannot be drawn."""
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
