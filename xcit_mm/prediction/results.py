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
_COMPLETE = ".complete"
"""Name of this folder from then on, until all of its files are in their places."""


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
    """Write images.json, and for a detector predictions.json, from the journals.

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
    """Raise FileExistsError if a folder has files with the names of results, but no run.json."""
    if (out / _COMPLETE).exists():  # a run whose results are being moved
        return
    for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
        if (out / name).exists() and not (out / SETTINGS).exists():
            raise FileExistsError(f"{out / name} is not of a run: choose another folder")


def replace_results(out: Path) -> None:
    """Replace the results in a folder by the new ones in `NEW`, which are complete."""
    (out / NEW).rename(out / _COMPLETE)
    finish_replacing(out)


def finish_replacing(out: Path) -> None:
    """Move new results that are complete to their places. After a kill, the next call goes on."""
    complete = out / _COMPLETE
    if not complete.exists():
        return
    if (complete / JOURNAL).exists():  # the former results are still there, or some of them
        for record in read_journals(out).records.values():
            if "error" in record:  # it has no files, perhaps because its name is too long
                continue
            (out / VISUALIZATIONS / f"{record['name']}.jpg").unlink(missing_ok=True)
            (out / LABELS / f"{record['name']}.png").unlink(missing_ok=True)
        (out / PREDICTIONS).unlink(missing_ok=True)
        shutil.rmtree(out / JOURNAL, ignore_errors=True)
        (complete / JOURNAL).rename(out / JOURNAL)
    for path in complete.rglob("*"):
        if path.is_file():
            target = out / path.relative_to(complete)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    shutil.rmtree(complete)
