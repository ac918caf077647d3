"""The files of a folder of predictions: drawings, maps, and COCO jsons of all images."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2

from ..utils.atomic import atomic_write
from ..utils.output import say
from .journal import JOURNAL, iter_objects
from .prediction import Prediction

LABELS = "labels"
VISUALIZATIONS = "visualizations"
IMAGES = "images.json"
PREDICTIONS = "predictions.json"


def result_paths(out: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of an item's drawing and map."""
    return out / VISUALIZATIONS / f"{name}.jpg", out / LABELS / f"{name}.png"


def write_drawing(path: Path, prediction: Prediction, drawing: Mapping[str, Any]) -> None:
    """Draw a prediction by these arguments. A line says so if it cannot be drawn."""
    try:
        is_encoded, jpeg = cv2.imencode(".jpg", prediction.draw(**drawing))
        if not is_encoded:
            raise ValueError("too large for JPEG")
    except ValueError as error:  # or the image has bands other than BGR
        say(f"not drawn: {path}: {error}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg.tobytes())


def write_jsons(out: Path, coco: Mapping[str, Any], is_detector: bool) -> None:
    """Write images.json, and of a detector predictions.json with the objects in the journals."""
    with atomic_write(out / IMAGES, out / JOURNAL / f"{IMAGES}.unfinished") as file:
        file.write(json.dumps(coco).encode())
    if is_detector:
        with atomic_write(out / PREDICTIONS, out / JOURNAL / f"{PREDICTIONS}.unfinished") as file:
            separator = "["
            for result in iter_objects(out):  # one by one, to save memory
                file.write(f"{separator}{json.dumps(result)}".encode())
                separator = ",\n"
            file.write(b"[]" if separator == "[" else b"]")
