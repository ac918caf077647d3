"""The folder of a run: its model and options in run.json, and the results that are merged from the records."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import mmcv
import mmengine
import numpy as np
import torch

from ..utils.atomic import atomic_write
from ..version import __version__
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from .predictor import Predictor
from .records import PARTS, Place

RUN, IMAGES, PREDICTIONS = "run.json", "images.json", "predictions.json"
LABELS, VISUALIZATIONS = "labels", "visualizations"


def open_folder(out: Path, now: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """Write the run.json of a new folder, or check that of an earlier call. Return its content.

    Raises:
        FileExistsError: If the folder has files of another origin.
        ValueError: If the model, an option or a version differs. The message names the first difference.
    """
    # run.json marks the folder as a run's, so it is removed last.
    names = PARTS, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS, RUN
    files = [out / name for name in names if (out / name).exists()]
    if files and files[-1].name != RUN:
        raise FileExistsError(f"{files[0]} does not belong to a run, which has a {RUN}: give another --out")
    if overwrite:
        for path in files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif files:
        try:
            before = json.loads((out / RUN).read_bytes())
            settings = [content["settings"] for content in (before, now)]
        except (ValueError, KeyError, TypeError):
            raise FileExistsError(f"{out / RUN} is not of this version: give another --out, or --overwrite") from None
        name = next((name for name in settings[1] if settings[0].get(name) != settings[1][name]), None)
        if name is not None:
            lines = [str(each.get(name)).splitlines() for each in settings]  # a config has many
            old, new = next(pair for pair in zip_longest(*lines, fillvalue="") if pair[0] != pair[1])
            fix = "give another --out, or --overwrite"
            raise ValueError(
                f"{out} is of another run: its {name} was {old.strip()[:200]}, is {new.strip()[:200]}; {fix}"
            )
        return before
    write_run(out, now)
    return now


def write_run(out: Path, content: dict[str, Any]) -> None:
    with atomic_write(out / RUN) as file:
        file.write(json.dumps(content, indent=2).encode())


def describe_run(
    predictor: Predictor, categories: dict[str, int] | None, drawing: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the content of run.json: the settings that determine results, with the ids of the classes in COCO files.

    Raises:
        ValueError: If a class of the model is not among the categories of a COCO json.
    """
    names, start = list(predictor.names), int(predictor.is_detector)
    ids = list(range(start, start + len(names)))  # those of a segmentor are the values of its maps
    if predictor.is_detector and categories is not None:
        if missing := [name for name in names if name not in categories]:
            has = ", ".join(categories)[:200]
            raise ValueError(f"the json has no category {', '.join(missing)[:200]}, a class of the model, but {has}")
        ids = [categories[name] for name in names]
    checkpoint = predictor.arguments["checkpoint"]
    path = ensure_downloaded(checkpoint) if checkpoint.startswith(REMOTE_PREFIXES) else checkpoint
    digest = hashlib.sha256(np.memmap(path, np.uint8, "r").data).hexdigest()
    library = __import__("mmdet" if predictor.is_detector else "mmseg")
    modules = torch, np, mmengine, mmcv, library
    settings = predictor.arguments | dict(
        config=predictor.cfg.pretty_text,
        checkpoint=f"{Path(path).name} ({digest:.16})",
        category_ids=ids,
        versions=dict(xcit_mm=__version__) | {module.__name__: module.__version__ for module in modules},
    )
    del settings["batch_size"]
    return json.loads(json.dumps(dict(settings=settings, drawing=drawing)))


def write_results(out: Path, predictor: Predictor, category_ids: Sequence[int], places: Sequence[Place]) -> None:
    """Write images.json, and of a detector predictions.json, from records."""
    categories = [dict(id=id_, name=name) for id_, name in zip(category_ids, predictor.names, strict=True)]
    end = f'], "categories": {json.dumps(categories)}, "annotations": []}}'
    results = _open_list(out / PREDICTIONS, "[", "]") if predictor.is_detector else nullcontext(print)
    with _open_list(out / IMAGES, '{"images": [', end) as add_image, results as add_result:
        for place in places:
            if place.error is None:
                record = place.read()
                image = dict(id=frame_id(place.item.id, place.frame), file_name=place.item.name)
                image |= {name: record[name] for name in ("height", "width", "frame") if name in record}
                add_image(image)
                for result in record.get("objects", []):
                    add_result(result)


def frame_id(id_: int | str | None, frame: int | None) -> int | str | None:
    """Return the id of an image, or of a frame: one more than that of its video, and nine digits of the frame."""
    return id_ if frame is None else (id_ + 1) * 10**9 + frame if isinstance(id_, int) else f"{id_}/{frame}"


@contextmanager
def _open_list(path: Path, start: str, end: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open a list in a JSON file, and yield a function that writes an item."""
    separator = start

    def write(value: dict[str, Any]) -> None:
        nonlocal separator
        file.write(f"{separator}{json.dumps(value)}".encode())
        separator = ",\n"

    with atomic_write(path) as file:
        yield write
        file.write((start * (separator == start) + end).encode())
