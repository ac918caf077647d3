"""`predict_many`: many images and videos, predicted into a folder. The same call resumes."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple
from zlib import crc32

from ..utils.atomic import atomic_write
from ..utils.cli import print_line, progress_bar
from ..utils.errors import preview
from ..utils.folders import SETTINGS, check_output, open_folder
from .cluster import predict_on_ray, rank_and_size, wait_for_ranks
from .engine import LABELS, VISUALIZATIONS, Engine, InputError, result_paths
from .journal import JOURNAL, Entry, Journal, Progress, read_journals
from .listing import Item, Listing
from .predictor import Predictor

IMAGES = "images.json"
PREDICTIONS = "predictions.json"


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
    """Predict the items that have no record in a folder, as docs/prediction.md describes.

    Each rank of torchrun predicts items of its own.

    Args:
        listing: From `find_items`.
        out: Folder of the results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing. What earlier calls drew
            with other arguments is drawn again.
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
    rank, size = rank_and_size()
    category_ids = _category_ids(predictor, listing.categories)
    if workers is None:  # a model on the CPU uses all cores itself
        workers = 0 if predictor.device == "cpu" else 2
    engine = Engine(out, predictor, category_ids, drawing, workers, Journal(out))
    opened = _open(engine, listing, overwrite) if rank == 0 else nullcontext()
    with opened:
        wait_for_ranks()
        progress = read_journals(out)
        pending = progress.list_pending(listing.items, retry_failed)
        if rank == 0:
            _print_notes(pending, progress.entries)
        own_items = pending
        if ray is None:
            own_items = [item for item in pending if _rank_of(item, size) == rank]
        name = f"rank {rank}" if size > 1 else None
        bar_options = dict(desc=name, position=rank, disable=not own_items)
        with progress_bar(len(own_items), "image", **bar_options) as bar:
            if ray is None:
                engine.predict(own_items, progress, bar.update)
            elif pending:
                predict_on_ray(ray, engine, pending, progress.entries, bar.update)
        wait_for_ranks()
        if rank > 0:
            return None
        progress = read_journals(out)
        report = _merge(engine, progress)
        _draw_again(engine, progress.entries)
        return report


def _rank_of(item: Item, size: int) -> int:
    """Return the rank of torchrun that predicts an item."""
    return crc32(os.fsencode(item.path)) % size


def _category_ids(predictor: Predictor, categories: dict[str, int] | None) -> list[int]:
    """Return the ids of the classes in COCO files.

    Raises:
        ValueError: If a class of the model is not among the categories of a COCO json.
    """
    names = list(predictor.names)
    if not predictor.is_detector:
        return list(range(len(names)))  # the values of the maps
    if categories is None:
        return list(range(1, len(names) + 1))
    if missing := [name for name in names if name not in categories]:
        has = ", ".join(categories)[:200]
        raise ValueError(
            f"the json has no category {', '.join(missing)[:200]}, a class of the model, but {has}"
        )
    return [categories[name] for name in names]


@contextmanager
def _open(engine: Engine, listing: Listing, overwrite: bool) -> Iterator[None]:
    """Open the folder for this call, after checks that nothing of the user's is replaced."""
    out = engine.out
    files = engine.predictor.arguments or {}
    model_files = [files[name] for name in ("config", "checkpoint") if name in files]
    check_output(out, [*model_files, *(item.path for item in listing.items)])
    if (out / "parts").is_dir() and (out / SETTINGS).exists():
        raise FileExistsError(
            f"{out} has results of a former version of xcit_mm, in {out / 'parts'}: "
            "give another --out, or remove the folder"
        )
    if not (out / SETTINGS).exists():
        for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
            if (out / name).exists():
                raise FileExistsError(
                    f"{out / name} does not belong to a run, which has a {SETTINGS}: "
                    "give another --out"
                )
    settings = engine.predictor.settings | dict(category_ids=engine.category_ids)
    with open_folder(out, settings, overwrite, lambda: _iter_results(out)):
        for path in (out / JOURNAL).glob("*.unfinished*"):
            path.unlink()
        yield


def _iter_results(out: Path) -> Iterator[Path]:
    """Yield the paths of all files that earlier calls may have written, except for the settings."""
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


def frame_id(video_id: int | str, frame: int) -> int | str:
    """Return the id of a frame: the next id after that of its video, and nine digits."""
    if isinstance(video_id, int):
        return (video_id + 1) * 10**9 + frame
    return f"{video_id}/{frame}"


def _merge(engine: Engine, progress: Progress) -> RunReport:
    """Write images.json, and of a detector predictions.json, in the order of the ids."""
    out = engine.out
    predictor = engine.predictor
    entries = progress.entries
    failures = [f"{path}: {entry.error}" for path, entry in entries.items() if entry.error]
    images: list[dict[str, Any]] = []
    with _open_list(out / PREDICTIONS, predictor.is_detector) as add_result:
        for path, id_ in progress.ids().items():
            entry = entries[path]
            if entry.error and not entry.item.is_video:  # a video keeps the frames before the error
                continue
            for record in entry.iter_results():
                image = dict(id=id_, file_name=entry.item.name)
                if entry.item.is_video:
                    image["frame"] = record["frame"]
                    image["id"] = frame_id(id_, record["frame"])
                images.append(image | dict(height=record["height"], width=record["width"]))
                for result in record.get("objects", []):
                    add_result(dict(image_id=image["id"]) | result)
    categories = [
        dict(id=id_, name=name)
        for id_, name in zip(engine.category_ids, predictor.names, strict=True)
    ]
    content = dict(images=images, categories=categories, annotations=[])
    with _open_result(out / IMAGES) as file:
        file.write(json.dumps(content).encode())
    return RunReport(out, len(entries) - len(failures), failures)


def _open_result(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Open a file that replaces an earlier one when it is complete."""
    return atomic_write(path, path.parent / JOURNAL / f"{path.name}.unfinished")


@contextmanager
def _open_list(path: Path, is_written: bool) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Open a JSON file, and yield a function that adds an item, which is not kept in memory."""
    if not is_written:
        yield lambda item: None
        return
    with _open_result(path) as file:
        separator = b"["

        def add(item: dict[str, Any]) -> None:
            nonlocal separator
            file.write(separator + json.dumps(item).encode())
            separator = b",\n"

        yield add
        file.write(b"[]" if separator == b"[" else b"]")


def _draw_again(engine: Engine, entries: Mapping[str, Entry]) -> None:
    """Draw what was drawn with other options, and print how many cannot be drawn."""
    if engine.drawing is None:
        return
    problems = []
    for entry in entries.values():
        if entry.error is None and entry.drawing != engine.drawing:
            try:
                engine.draw_again(entry)
            except InputError as error:
                problems.append(str(error))
    if problems:
        print_line(f"results that keep an earlier drawing: {preview(problems)}")
