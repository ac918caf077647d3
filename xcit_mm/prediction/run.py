"""`predict_many`: many images and videos, predicted into a folder. The same call resumes."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..utils.atomic import atomic_write
from ..utils.cli import print_line, progress_bar
from ..utils.errors import preview
from ..utils.folders import SETTINGS, check_output, open_folder
from .cluster import predict_on_ray, rank_and_size, wait_for_ranks
from .engine import Engine
from .journal import Entry, Journal, Progress, read_journals
from .listing import JOURNAL, Item, Listing
from .predictor import Predictor
from .results import LABELS, VISUALIZATIONS, Results, result_paths

IMAGES = "images.json"
PREDICTIONS = "predictions.json"


class RunReport(NamedTuple):
    """Result of a run.

    Attributes:
        out: Folder of the results.
        predicted: Number of images and videos that were predicted, now or earlier.
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
        ValueError: If the folder has results of another model, options or versions, if it holds an
            input, or if an argument is invalid.
        OSError: If a result cannot be written.
        RuntimeError: If a process that reads images died. Another call finds the image.
    """
    if overwrite and retry_failed:
        raise ValueError("overwrite and retry_failed exclude each other: give one of them")
    out = Path(os.path.abspath(out))
    category_ids = _category_ids(predictor, listing.categories)
    results = Results(out, predictor, category_ids, drawing, Journal(out))
    is_first = rank_and_size()[0] == 0
    with _opened(results, listing, overwrite) if is_first else nullcontext():
        wait_for_ranks()
        progress = read_journals(out)
        pending = progress.list_pending(listing.items, retry_failed)
        if is_first:
            _print_notes(pending, progress.entries)
        if workers is None:  # a model on the CPU uses all cores itself
            workers = 0 if predictor.device == "cpu" else 2
        if ray is None:
            _predict(results, pending, progress.deaths, workers)
        else:
            _show_progress(predict_on_ray(ray, results, workers, pending), len(pending))
        wait_for_ranks()
        if not is_first:
            return None
        progress = read_journals(out)
        _note_drawings(results, progress.entries)
        return _merge(results, progress, listing.failures)


def _predict(
    results: Results, pending: Sequence[Item], deaths: Mapping[str, int], workers: int
) -> None:
    """Predict the items of this rank of torchrun."""
    rank, size = rank_and_size()
    items = [item for item in pending if crc32(os.fsencode(item.path)) % size == rank]
    _show_progress(Engine(results, workers).predict(items, deaths), len(items))


def _show_progress(predicted: Iterable[object], total: int) -> None:
    rank, size = rank_and_size()
    name = f"rank {rank}" if size > 1 else None
    with progress_bar(total, "image", desc=name, position=rank, disable=not total) as bar:
        for _ in predicted:
            bar.update()


def _category_ids(predictor: Predictor, categories: dict[str, int] | None) -> list[int]:
    """Return the ids of the classes in COCO files: those of a COCO json, or from 1 on."""
    names = list(predictor.names)
    if not predictor.is_detector:
        return list(range(len(names)))  # the values of the maps
    if categories is None:
        return list(range(1, len(names) + 1))
    missing = [name for name in names if name not in categories]
    if missing:
        raise ValueError(
            f"the json has no category {preview(missing)}, a class of the model, but "
            f"{preview(categories)}"
        )
    return [categories[name] for name in names]


@contextmanager
def _opened(results: Results, listing: Listing, overwrite: bool) -> Iterator[None]:
    """Open the folder, after checks that nothing of the user's is replaced."""
    out = results.out
    arguments = results.predictor.arguments or {}
    model_files = [arguments[name] for name in ("config", "checkpoint") if name in arguments]
    check_output(out, [*model_files, *(item.path for item in listing.items)])
    is_resumed = (out / SETTINGS).exists()
    former_version = ("parts",)
    own = (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS)
    for name in former_version if is_resumed else own:
        if (out / name).exists():
            raise FileExistsError(
                f"{out / name} is not of a run of this version: give another --out, or remove it"
            )
    settings = results.predictor.settings | dict(category_ids=results.category_ids)
    with open_folder(out, settings, overwrite, lambda: _iter_results(out)):
        for path in (out / JOURNAL).glob("*.unfinished*"):
            path.unlink()
        yield


def _iter_results(out: Path) -> Iterator[Path]:
    """Yield the paths of all files that earlier calls may have written, except for run.json."""
    for name in read_journals(out).names:
        yield from result_paths(out, name)
    yield from (out / JOURNAL).glob("*")
    yield out / IMAGES
    yield out / PREDICTIONS


def _print_notes(pending: Sequence[Item], entries: Mapping[str, Entry]) -> None:
    """Print how many predicted files have changed or vanished."""
    known = [item.path for item in pending if item.path in entries]
    changed = [path for path in known if entries[path].error is None]
    if changed:
        print_line(f"predicted again, since the files have changed: {preview(changed)}")
    vanished = [path for path in entries if "://" not in path and not os.path.exists(path)]
    if vanished:
        print_line(f"results of files that have vanished, kept: {preview(vanished)}")


def _merge(results: Results, progress: Progress, unread: Sequence[str]) -> RunReport:
    """Write images.json, and of a detector predictions.json.

    Args:
        unread: `Listing.failures`.
    """
    images_and_objects = _iter_images(progress)
    if results.predictor.is_detector:
        images = _write_objects(results.out / PREDICTIONS, images_and_objects)
    else:
        images = [image for image, _ in images_and_objects]
    classes = zip(results.category_ids, results.predictor.names, strict=True)
    categories = [dict(id=id_, name=name) for id_, name in classes]
    content = dict(images=images, categories=categories, annotations=[])
    with _open_result(results.out / IMAGES) as file:
        file.write(json.dumps(content).encode())
    entries = progress.entries
    failures = [f"{path}: {entry.error}" for path, entry in entries.items() if entry.error]
    predicted = len(entries) - len(failures)
    return RunReport(results.out, predicted, [*unread, *failures])


def _iter_images(progress: Progress) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the entry of each image in images.json, and its objects."""
    for path, id_ in progress.ids().items():
        entry = progress.entries[path]
        if entry.error and not entry.item.is_video:  # a video keeps the frames before the error
            continue
        for record in entry.iter_results():
            image = dict(id=id_, file_name=entry.item.name)
            if entry.item.is_video:
                image["frame"] = record["frame"]
                image["id"] = _frame_id(id_, record["frame"])
            image |= dict(height=record["height"], width=record["width"])
            yield image, record.get("objects", [])


def _frame_id(video_id: int | str, frame: int) -> int | str:
    """Return the id of a frame: the next id after that of its video, and nine digits."""
    if isinstance(video_id, int):
        return (video_id + 1) * 10**9 + frame
    return f"{video_id}/{frame}"


def _open_result(path: Path) -> AbstractContextManager[Any]:
    """Open a file that replaces an earlier one when it is complete."""
    return atomic_write(path, path.parent / JOURNAL / f"{path.name}.unfinished")


def _write_objects(
    path: Path, images_and_objects: Iterable[tuple[dict[str, Any], list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Write the objects of all images one by one, to save memory, and return the images."""
    images = []
    with _open_result(path) as file:
        separator = b"["
        for image, objects in images_and_objects:
            images.append(image)
            for result in objects:
                line = json.dumps(dict(image_id=image["id"]) | result)
                file.write(separator + line.encode())
                separator = b",\n"
        file.write(b"[]" if separator == b"[" else b"]")
    return images


def _note_drawings(results: Results, entries: Mapping[str, Entry]) -> None:
    """Print how many results were drawn with other options than those of this call."""
    drawn = [entry.drawing for entry in entries.values() if entry.error is None]
    kept = sum(drawing != results.drawing for drawing in drawn)
    if results.drawing is not None and kept:
        print_line(f"{kept} results keep the drawings of other options: --overwrite draws anew")
