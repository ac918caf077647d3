"""The files of a folder of predictions: drawings, maps, and COCO jsons of all images."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..utils.atomic import atomic_write, named_in_errors
from ..utils.folders import SETTINGS
from ..utils.output import say
from .journal import JOURNAL, iter_objects, read_journals
from .prediction import Prediction

LABELS = "labels"
VISUALIZATIONS = "visualizations"
IMAGES = "images.json"
PREDICTIONS = "predictions.json"
NEW = ".new"
"""Folder, in that of a run, of the results that replace it when they are complete."""


def write_drawing(out: Path, name: str, prediction: Prediction, drawing: Mapping[str, Any]) -> None:
    """Draw the prediction for an item by these arguments, or print why it cannot be drawn."""
    path = out / VISUALIZATIONS / f"{name}.jpg"
    try:
        is_encoded, jpeg = cv2.imencode(".jpg", prediction.draw(**drawing))
        if not is_encoded:
            raise ValueError("too large for JPEG")
    except ValueError as error:  # or the image has bands other than BGR
        say(f"not drawn: {path}: {error}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with named_in_errors(path):
        path.write_bytes(jpeg.tobytes())


def write_map(out: Path, name: str, labels: np.ndarray) -> None:
    """Write the map of an item, (H, W)."""
    with atomic_write(out / LABELS / f"{name}.png") as file:
        file.write(cv2.imencode(".png", labels)[1].tobytes())


def write_jsons(
    out: Path, categories: Sequence[Mapping[str, Any]], is_detector: bool
) -> tuple[int, list[str]]:
    """Write images.json, and of a detector predictions.json, from the journals.

    Returns:
        The number of images with a result, and path and reason of each failure.
    """
    images = []
    failures = []
    for record in read_journals(out).records.values():
        if "error" in record:
            failures.append(f"{record['path']}: {record['error']}")
        else:
            size = dict(height=record["height"], width=record["width"])
            images.append(dict(id=record["id"], file_name=record["name"]) | size)
    with atomic_write(out / IMAGES) as file:
        coco = dict(images=images, categories=categories, annotations=[])
        file.write(json.dumps(coco).encode())
    if is_detector:
        with atomic_write(out / PREDICTIONS) as file:
            separator = "["
            for result in iter_objects(out):  # one by one, to save memory
                file.write(f"{separator}{json.dumps(result)}".encode())
                separator = ",\n"
            file.write(b"[]" if separator == "[" else b"]")
    return len(images), failures


def check_is_run(out: Path) -> None:
    """Raise FileExistsError if a folder has files with the names of results, but is not of a run.

    While new results are moved to their places, the folder of a run may have no run.json.
    """
    if (out / SETTINGS).exists() or (out / NEW).exists():
        return
    for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
        if (out / name).exists():
            raise FileExistsError(f"{out / name} is not of a run: choose another folder")


def replace_results(out: Path) -> None:
    """Replace the results in a folder by the new ones in `NEW`, which are complete.

    The journal is moved last: if a kill comes before, the same call goes on.
    """
    new = out / NEW
    for record in read_journals(out).records.values():
        (out / VISUALIZATIONS / f"{record['name']}.jpg").unlink(missing_ok=True)
        (out / LABELS / f"{record['name']}.png").unlink(missing_ok=True)
    (out / PREDICTIONS).unlink(missing_ok=True)
    shutil.rmtree(out / JOURNAL, ignore_errors=True)
    for path in new.rglob("*"):
        if path.is_file() and path.parent != new / JOURNAL:
            target = out / path.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    (new / JOURNAL).rename(out / JOURNAL)
    shutil.rmtree(new)
