"""The files of a folder of predictions: drawings, maps, and COCO jsons of all images."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..utils.atomic import atomic_write, named_in_errors
from ..utils.folders import LOCK, SETTINGS
from ..utils.output import say
from .journal import JOURNAL, iter_objects, list_journals, read_journals
from .prediction import Prediction

LABELS = "labels"
VISUALIZATIONS = "visualizations"
IMAGES = "images.json"
PREDICTIONS = "predictions.json"
NEW = ".new"
"""Folder, in that of a run, of the results that replace it when they are complete."""
_OUTDATED = "outdated.json"
"""File in it that says so. It lists the results in the folder of the run without a new one."""


def write_drawing(out: Path, name: str, prediction: Prediction, drawing: Mapping[str, Any]) -> None:
    """Draw the prediction for an item by these arguments. A line says so if it cannot be drawn."""
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


def write_jsons(out: Path, coco: Mapping[str, Any], is_detector: bool) -> None:
    """Write images.json, and of a detector predictions.json with the objects in the journals."""
    with atomic_write(out / IMAGES) as file:
        file.write(json.dumps(coco).encode())
    if is_detector:
        with atomic_write(out / PREDICTIONS) as file:
            separator = "["
            for result in iter_objects(out):  # one by one, to save memory
                file.write(f"{separator}{json.dumps(result)}".encode())
                separator = ",\n"
            file.write(b"[]" if separator == "[" else b"]")


def check_is_run(out: Path) -> None:
    """Raise FileExistsError if a folder that is not of a run has files with names of results."""
    for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
        if (out / name).exists() and not (out / SETTINGS).exists():
            raise FileExistsError(f"{out / name} is not of a run: choose another folder")


def finish_new(out: Path) -> None:
    """Replace the results in a folder by the new ones in `NEW`, which are complete."""
    new = out / NEW
    outdated = _list_results(out) - _list_results(new)
    with atomic_write(new / _OUTDATED) as file:
        file.write(json.dumps(sorted(outdated)).encode())
    move_new(out)


def move_new(out: Path) -> None:
    """Move new results that are complete to their places. After a kill, the next call goes on."""
    new = out / NEW
    if not (new / _OUTDATED).exists():
        return
    for name in json.loads((new / _OUTDATED).read_bytes()):
        (out / name).unlink(missing_ok=True)
    for path in new.rglob("*"):
        if path.is_file() and path.name not in (_OUTDATED, LOCK):
            target = out / path.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    shutil.rmtree(new)


def _list_results(out: Path) -> set[str]:
    """List the files of a run in its folder: drawings, maps, jsons and journals."""
    results = {IMAGES, PREDICTIONS, *(f"{JOURNAL}/{path.name}" for path in list_journals(out))}
    for record in read_journals(out).records.values():
        results.add(f"{VISUALIZATIONS}/{record['name']}.jpg")
        results.add(f"{LABELS}/{record['name']}.png")
    return {name for name in results if (out / name).exists()}
