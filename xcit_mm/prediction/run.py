"""`predict_many`: many images and videos, predicted into a folder of records. The same call
resumes.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import mmcv
import mmengine
import numpy as np
import torch

from ..utils.atomic import atomic_write
from ..utils.cli import progress_bar
from ..version import __version__
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from .listing import Listing, number_items
from .predictor import Predictor
from .processes import predict_on_ray, rank_and_size, wait_for_ranks
from .records import PARTS, drop_failures, item_of, iter_records, read_deaths
from .worker import LABELS, VISUALIZATIONS, Worker, frame_id

RUN, IMAGES, PREDICTIONS = "run.json", "images.json", "predictions.json"
# run.json marks the folder as that of a run, so it is removed last.
_RESULTS = PARTS, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS, RUN


class RunReport(NamedTuple):
    """Result of a run.

    Attributes:
        out: Folder of the results.
        predicted: Number of images and videos that were predicted, now or earlier.
        failures: Path and reason of each that failed.
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
    """Predict the items that have no record in a folder, and write the results there, as
    docs/prediction.md describes.

    In the ranks of torchrun, each rank predicts every n-th of these items.

    Args:
        listing: From `find_items`.
        out: Folder of the results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing. With other arguments than
            before, the results of earlier calls are drawn again first.
        workers: Number of processes that read images. Default: 2 beside a GPU, else 0.
        ray: Address of a Ray cluster, 'auto' for that of this machine, or 'local' for a new one.
        overwrite: Whether to remove the results of earlier calls first.
        retry_failed: Whether to predict failures again.

    Returns:
        Results and failures in the folder, or None in the ranks of torchrun other than 0.

    Raises:
        FileExistsError: If the folder has files of another origin.
        ValueError: If the folder has results of another model, options or versions, or an argument
            is invalid.
        RuntimeError: If a process that reads images died. Another call finds the image.
    """
    if overwrite and retry_failed:
        raise ValueError("overwrite and retry_failed exclude each other: give one of them")
    out, (rank, size) = Path(os.path.abspath(out)), rank_and_size()
    ids, settings, drawn = _category_ids(predictor, listing.categories), dict[str, Any](), drawing
    if rank == 0:
        settings = _settings(predictor, ids)
        drawn = _open(out, settings, drawing, overwrite)
    if workers is None:  # a model on the CPU uses all cores itself
        workers = 0 if next(predictor.model.parameters()).device.type == "cpu" else 2
    worker = Worker(out, predictor, ids, drawing, workers)
    if rank == 0 and retry_failed:
        drop_failures(out)
    wait_for_ranks()
    known = {record["path"]: item_of(record) for record in iter_records(out)}
    pending = [item for item in number_items(listing.items, known) if item.path not in known]
    left = list((out / PARTS).glob("*.in-flight"))
    deaths = read_deaths(left)
    wait_for_ranks()
    if rank == 0:
        for path in left:
            path.unlink()
        if drawn != drawing:
            worker.redraw()
            _write_run(out, settings, drawing)
    own, name = pending[rank::size], f"part-{time.time_ns():020}-{rank}"
    options = dict(desc=f"rank {rank}" if size > 1 else None, position=rank, disable=not own)
    with progress_bar(len(own), "image", **options) as bar:
        if ray is not None and pending:
            predict_on_ray(ray, worker, pending, deaths, bar.update)
        else:
            worker.predict(own, name, deaths, bar.update)
    wait_for_ranks()
    return _merge(worker) if rank == 0 else None


def _category_ids(predictor: Predictor, categories: dict[str, int] | None) -> list[int]:
    """Return the ids of the classes in COCO files.

    Raises:
        ValueError: If a class of the model is not among the categories of a COCO json.
    """
    names, start = list(predictor.names), int(predictor.is_detector)
    if not predictor.is_detector or categories is None:
        return list(
            range(start, start + len(names))
        )  # those of a segmentor are the values of its maps
    if missing := [name for name in names if name not in categories]:
        has = ", ".join(categories)[:200]
        raise ValueError(
            f"the json has no category {', '.join(missing)[:200]}, a class of the model, but {has}"
        )
    return [categories[name] for name in names]


def _settings(predictor: Predictor, category_ids: list[int]) -> dict[str, Any]:
    """Return what determines results: arguments, model and versions, and the ids of the classes in
    COCO files.
    """
    config, checkpoint = (predictor.arguments[name] for name in ("config", "checkpoint"))
    path = ensure_downloaded(checkpoint) if checkpoint.startswith(REMOTE_PREFIXES) else checkpoint
    library = __import__("mmdet" if predictor.is_detector else "mmseg")
    settings = predictor.arguments | dict(
        config=f"{Path(config).name} ({_digest(repr(predictor.cfg.to_dict()).encode())})",
        checkpoint=f"{Path(path).name} ({_digest(np.memmap(path, np.uint8, 'r').data)})",
        category_ids=category_ids,
        xcit_mm=__version__,
    )
    del settings["batch_size"]
    return settings | {
        module.__name__: str(module.__version__) for module in (torch, np, mmengine, mmcv, library)
    }


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _open(
    out: Path, settings: dict[str, Any], drawing: dict[str, Any] | None, overwrite: bool
) -> Any:
    """Write the run.json of a new folder, or compare that of an earlier call. Return the drawing
    that it states.

    Raises:
        FileExistsError: If the folder has files of another origin.
        ValueError: If the model, an option or a version differs. The message names the first
            difference.
    """
    files = [out / name for name in _RESULTS if (out / name).exists()]
    if files and files[-1].name != RUN:
        raise FileExistsError(
            f"{files[0]} does not belong to a run, which has a {RUN}: give another --out"
        )
    if files and not overwrite:
        try:
            content = json.loads((out / RUN).read_bytes())
            before, drawn = content["settings"], content["drawing"]
        except (ValueError, KeyError, TypeError):
            raise FileExistsError(
                f"{out / RUN} is not of this version: give another --out, or --overwrite"
            ) from None
        for name, now in settings.items():
            if before.get(name) != now:
                change = f"its {name} was {before.get(name)}, is {now}"
                raise ValueError(
                    f"{out} is of another run: {change}; give another --out, or --overwrite"
                )
        return drawn
    for path in files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _write_run(out, settings, drawing)
    return drawing


def _write_run(out: Path, settings: dict[str, Any], drawing: dict[str, Any] | None) -> None:
    with atomic_write(out / RUN) as file:
        file.write(json.dumps(dict(settings=settings, drawing=drawing), indent=2).encode())


def _merge(worker: Worker) -> RunReport:
    """Write images.json, and of a detector predictions.json, from all records."""
    out, predictor, seen, failures = (
        worker.out,
        worker.predictor,
        set[tuple[str, int | None]](),
        dict[str, str](),
    )
    categories = [
        dict(id=id_, name=name)
        for id_, name in zip(worker.category_ids, predictor.names, strict=True)
    ]
    end = f'], "categories": {json.dumps(categories)}, "annotations": []}}'
    results = (
        _open_list(out / PREDICTIONS, "[", "]") if predictor.is_detector else nullcontext(print)
    )
    with _open_list(out / IMAGES, '{"images": [', end) as add_image, results as add_result:
        for record in iter_records(out):
            frame = record.get("frame")
            if "error" in record:
                failures[record["path"]] = record["error"]
            elif (record["path"], frame) not in seen:  # Ray may run an actor twice
                seen.add((record["path"], frame))
                image = dict(id=frame_id(record["id"], frame), file_name=record["name"])
                add_image(
                    image
                    | {
                        name: record[name]
                        for name in ("height", "width", "frame")
                        if name in record
                    }
                )
                for result in record.get("objects", []):
                    add_result(result)
    predicted = {path for path, _ in seen} - failures.keys()
    return RunReport(out, len(predicted), [f"{path}: {error}" for path, error in failures.items()])


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
