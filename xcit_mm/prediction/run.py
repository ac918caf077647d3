"""`predict_many`: many images, predicted into a folder. The same call resumes."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import supervision as sv

from ..utils.atomic import atomic_write
from ..utils.cli import print_line, progress_bar
from ..utils.errors import preview
from ..utils.folders import SETTINGS, check_output, open_folder
from ..utils.texts import class_name
from .cluster import predict_on_ray, rank_and_size, wait_for_ranks
from .engine import Engine
from .items import Item
from .journal import Entry, Journal, Progress, read_journals
from .listing import JOURNAL, Listing
from .prediction import Prediction
from .predictor import Predictor
from .results import LABELS, VISUALIZATIONS, Results, drawing_path, map_path

IMAGES = "images.json"
PREDICTIONS = "predictions.json"


class RunReport(NamedTuple):
    """Result of a run.

    Attributes:
        out: Folder of the results.
        predicted: Number of images that were predicted, now or earlier.
        failures: Path and reason of each that failed, and of each folder that cannot be read.
    """

    out: Path
    predicted: int
    failures: list[str]

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{self.predicted} predicted{failed}: {self.out}"


def predict_many(
    listing: Listing,
    predictor: Predictor,
    out: str | Path,
    drawing: dict[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
) -> RunReport | None:
    """Predict the items that have no record in a folder, as docs/prediction.md describes.

    Each rank of torchrun predicts items of its own.

    Args:
        listing: From `find_items`.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing. Drawings of earlier calls
            stay. A line counts those of other arguments.
        workers: Number of processes that read images. Default: 2 beside a GPU, else 0.
        ray: Address of a Ray cluster, 'auto' for that of this machine, or 'local' for a new one.
        overwrite: Whether to remove the results of earlier calls first.
        retry_failed: Whether to predict failures again.

    Returns:
        Results and failures in the folder, or None in the ranks of torchrun other than 0.

    Raises:
        FileExistsError: If the folder has files of another origin.
        BlockingIOError: If another process predicts into the folder.
        TypeError, ValueError: If an argument is invalid, or if the folder holds an input, or
            results of another model, options or versions.
        OSError: If a result cannot be written.
        RuntimeError: If a process that reads images died. Another call finds the image.
    """
    if overwrite and retry_failed:
        raise ValueError("overwrite and retry_failed exclude each other: give one of them")
    if drawing is not None:
        _check_drawing(predictor, drawing)
    out = Path(os.path.abspath(out))
    category_ids = _category_ids(predictor, listing.categories)
    results = Results(out, predictor, category_ids, drawing, Journal(out))
    rank, size = rank_and_size()
    with nullcontext() if rank else _open_results(results, listing, overwrite):
        wait_for_ranks()
        progress = read_journals(out)
        pending = progress.list_pending(listing.items, retry_failed)
        if rank == 0:
            _print_changed_files(pending, progress.entries)
        if workers is None:  # a model on the CPU uses all cores itself
            workers = 0 if predictor.device == "cpu" else 2
        predicted: Iterable[object]
        if ray is None:
            pending = [item for item in pending if crc32(os.fsencode(item.path)) % size == rank]
            predicted = Engine(results, workers).predict(pending, progress.deaths)
        else:
            predicted = predict_on_ray(ray, results, workers, pending)
        name = f"rank {rank}" if size > 1 else None
        total = len(pending)
        with progress_bar(total, "image", desc=name, position=rank, disable=not total) as bar:
            for _ in predicted:
                bar.update()
        wait_for_ranks()
        return None if rank else _merge(results, listing.failures)


def _check_drawing(predictor: Predictor, drawing: dict[str, Any]) -> None:
    """Raise now what drawing with these options would raise after the first prediction."""
    try:
        json.dumps(drawing)  # as the journal does
    except TypeError as error:
        raise TypeError(f"{drawing=}: {error}; give numbers and texts") from None
    image = np.zeros((32, 32, 3), np.uint8)
    box = sv.Detections(np.ones((1, 4)), class_id=np.zeros(1, int), confidence=np.ones(1))
    instances = box if predictor.is_detector else None
    segmentation = None if predictor.is_detector else image[..., 0]
    Prediction(image, instances, segmentation, predictor.names).draw(**drawing)


def _category_ids(predictor: Predictor, categories: dict[str, int] | None) -> list[int]:
    """Return the ids of the classes in COCO files: those of a COCO json, or from 1 on."""
    names = list(predictor.names)
    if not predictor.is_detector:
        return list(range(len(names)))  # the values of the maps
    if categories is None:
        return list(range(1, len(names) + 1))
    plain = [class_name(name) for name in names]  # as the categories are
    missing = [name for name in plain if name not in categories]
    if missing:
        raise ValueError(
            f"the json has no category {preview(missing)}, a class of the model, but "
            f"{preview(categories)}"
        )
    return [categories[name] for name in plain]


@contextmanager
def _open_results(results: Results, listing: Listing, overwrite: bool) -> Iterator[None]:
    """Open the folder, after checks that nothing of the user's is replaced."""
    out = results.out
    arguments = results.predictor.arguments
    model_files = [arguments["config"], arguments["checkpoint"]] if arguments else []
    check_output(out, [*model_files, *(item.path for item in listing.items)])
    for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
        if (out / name).exists() and not (out / SETTINGS).exists():
            raise FileExistsError(f"{out / name} is not of a run: give another --out, or remove it")
    settings = results.predictor.settings | dict(category_ids=results.category_ids)

    def list_results() -> Iterator[Path]:
        for name in read_journals(out).names:
            yield drawing_path(out, name)
            yield map_path(out, name)
        yield from (out / JOURNAL).glob("*")
        yield from (out / IMAGES, out / PREDICTIONS)

    with open_folder(out, settings, overwrite, list_results):
        for path in (out / JOURNAL).glob("*.unfinished*"):
            path.unlink()
        yield


def _print_changed_files(pending: Sequence[Item], entries: Mapping[str, Entry]) -> None:
    """Print which predicted files have changed or vanished."""
    paths = [item.path for item in pending if item.path in entries]
    changed = [path for path in paths if entries[path].error is None]
    if changed:
        print_line(f"predicted again, since the files have changed: {preview(changed)}")
    vanished = [path for path in entries if not os.path.exists(path)]
    if vanished:
        print_line(f"results of files that have vanished, kept: {preview(vanished)}")


def _merge(results: Results, unread: Sequence[str]) -> RunReport:
    """Write images.json, and of a detector predictions.json, and return the report.

    Args:
        unread: Path and reason of each folder that cannot be read.
    """
    progress = read_journals(results.out)
    predicted = [entry for entry in progress.entries.values() if entry.error is None]
    kept = sum(entry.drawing != results.drawing for entry in predicted)
    if results.drawing is not None and kept:
        print_line(f"{kept} results keep the drawings of other options: --overwrite draws anew")
    if results.predictor.is_detector:
        images = _write_objects(results.out, progress)
    else:
        images = [image for image, _ in _iter_images(progress)]
    classes = zip(results.category_ids, results.predictor.names, strict=True)
    categories = [dict(id=id_, name=name) for id_, name in classes]
    coco = dict(images=images, categories=categories, annotations=[])
    with atomic_write(results.out / IMAGES, _unfinished(results.out, IMAGES)) as file:
        file.write(json.dumps(coco).encode())
    entries = progress.entries.items()
    failures = [f"{path}: {entry.error}" for path, entry in entries if entry.error is not None]
    return RunReport(results.out, len(predicted), [*unread, *failures])


def _unfinished(out: Path, name: str) -> Path:
    return out / JOURNAL / f"{name}.unfinished"


def _iter_images(progress: Progress) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each predicted image as images.json lists it, and its objects."""
    for entry in progress.entries.values():
        if entry.error is not None:
            continue
        record = entry.read_record()
        image = dict(id=entry.item.id, file_name=entry.item.name)
        image |= dict(height=record["height"], width=record["width"])
        yield image, record.get("objects", [])


def _write_objects(out: Path, progress: Progress) -> list[dict[str, Any]]:
    """Write the objects of all images one by one, to save memory, and return the images."""
    images = []
    with atomic_write(out / PREDICTIONS, _unfinished(out, PREDICTIONS)) as file:
        separator = b"["
        for image, objects in _iter_images(progress):
            images.append(image)
            for result in objects:
                line = json.dumps(dict(image_id=image["id"]) | result)
                file.write(separator + line.encode())
                separator = b",\n"
        file.write(b"[]" if separator == b"[" else b"]")
    return images
