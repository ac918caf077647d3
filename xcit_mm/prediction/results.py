"""The files of a folder of predictions: drawings, maps, and COCO jsons of all images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..utils.atomic import atomic_write
from ..utils.cli import print_line
from .journal import JOURNAL, Progress
from .prediction import Prediction

LABELS = "labels"
VISUALIZATIONS = "visualizations"
IMAGES = "images.json"
PREDICTIONS = "predictions.json"


def result_paths(out: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of an item's drawing and map."""
    return out / VISUALIZATIONS / f"{name}.jpg", out / LABELS / f"{name}.png"


def write_map(path: Path, segmentation: np.ndarray, unfinished: Path) -> None:
    png = cv2.imencode(".png", segmentation)[1]
    with atomic_write(path, unfinished) as file:
        file.write(png.tobytes())


def write_drawing(path: Path, prediction: Prediction, drawing: Mapping[str, Any]) -> None:
    """Draw a prediction by these arguments. A line says so if it cannot be drawn."""
    try:
        is_encoded, jpeg = cv2.imencode(".jpg", prediction.draw(**drawing))
        problem = "" if is_encoded else "too large for JPEG"
    except ValueError as error:  # the image has bands other than BGR
        problem = str(error)
    if problem:
        print_line(f"not drawn: {path}: {problem}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg.tobytes())


def write_images(out: Path, progress: Progress, categories: Sequence[Mapping[str, Any]]) -> None:
    """Write images.json with all images that are predicted.

    Args:
        categories: COCO's `id` and `name` of each class.
    """
    images = [
        dict(
            id=record["id"],
            file_name=record["name"],
            height=record["height"],
            width=record["width"],
        )
        for record in progress.records.values()
        if "error" not in record
    ]
    coco = dict(images=images, categories=categories, annotations=[])
    with atomic_write(out / IMAGES, out / JOURNAL / f"{IMAGES}.unfinished") as file:
        file.write(json.dumps(coco).encode())


def write_predictions(out: Path, progress: Progress) -> None:
    """Write the objects of all images to predictions.json, one by one, to save memory."""
    with atomic_write(out / PREDICTIONS, out / JOURNAL / f"{PREDICTIONS}.unfinished") as file:
        separator = b"["
        for result in progress.iter_objects():
            file.write(separator + json.dumps(result).encode())
            separator = b",\n"
        file.write(b"[]" if separator == b"[" else b"]")
