"""`predict_many`: many images and videos, predicted into a folder of records. The same call resumes."""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.atomic import unfinished_files
from ..utils.cli import progress_bar
from .folder import describe_run, open_folder, write_results, write_run
from .listing import Item, Listing, number_items
from .predictor import Predictor
from .processes import predict_on_ray, rank_and_size, wait_for_ranks
from .records import PARTS, Places, read_deaths, read_places
from .worker import Worker


class RunReport(NamedTuple):
    """Result of a run.

    Attributes:
        out: Folder of the results.
        predicted: Number of images and videos that were predicted, now or earlier.
        failures: Path and reason of each that failed.
        interrupted: Whether Ctrl-C ended the run.
    """

    out: Path
    predicted: int
    failures: list[str]
    interrupted: bool = False

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{'interrupted: ' * self.interrupted}{self.predicted} predicted{failed}: {self.out}"


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
    """Predict the items that have no record in a folder, and write the results there, as docs/prediction.md describes.

    In the ranks of torchrun, each rank predicts every n-th of these items.

    Args:
        listing: From `find_items`.
        out: Folder of the results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing. With other arguments than before, all results
            are drawn again.
        workers: Number of processes that read images. Default: 2 beside a GPU, else 0.
        ray: Address of a Ray cluster, 'auto' for that of this machine, or 'local' for a new one.
        overwrite: Whether to remove the results of earlier calls first.
        retry_failed: Whether to predict failures again.

    Returns:
        Results and failures in the folder, or None in the ranks of torchrun other than 0. After Ctrl-C, the results of
        completed items are merged.

    Raises:
        FileExistsError: If the folder has files of another origin.
        ValueError: If the folder has results of another model, options or versions, or an argument is invalid.
        RuntimeError: If a process that reads images died. Another call finds the image.
    """
    if overwrite and retry_failed:
        raise ValueError("overwrite and retry_failed exclude each other: give one of them")
    out, (rank, size) = Path(os.path.abspath(out)), rank_and_size()
    content = describe_run(predictor, listing.categories, drawing)
    if rank == 0:
        content = open_folder(out, content, overwrite)
    wait_for_ranks()
    if workers is None:  # a model on the CPU uses all cores itself
        workers = 0 if next(predictor.model.parameters()).device.type == "cpu" else 2
    worker = Worker(out, predictor, content["settings"]["category_ids"], drawing, workers)
    places, left = read_places(out), sorted((out / PARTS).glob("*.in-flight"))
    deaths, pending = read_deaths(left), _find_pending(listing.items, places, retry_failed)
    pending.sort(key=lambda item: item.path not in deaths)
    old = set(places) if drawing != content["drawing"] else set()
    del places  # of a million images takes half a gigabyte
    wait_for_ranks()
    if rank == 0:
        _remove_leftovers(out, left)
    interrupted = False
    try:
        _predict(worker, pending, deaths, ray)
    except KeyboardInterrupt:
        if size > 1:
            raise
        interrupted = True
    wait_for_ranks()
    return _finish(worker, content, old, interrupted) if rank == 0 else None


def _predict(worker: Worker, pending: list[Item], deaths: dict[str, int], ray: str | None) -> None:
    rank, size = rank_and_size()
    own, name = pending[rank::size], f"rank {rank}" if size > 1 else None
    with progress_bar(len(own), "image", desc=name, position=rank, disable=not own) as bar:
        if ray is not None and pending:
            predict_on_ray(ray, worker, pending, deaths, bar.update)
        else:
            worker.predict(own, f"part-{time.time_ns():020}-{rank}", deaths, bar.update)


def _remove_leftovers(out: Path, left: list[Path]) -> None:
    """Remove what killed processes left. A new file may belong to another process."""
    old = [path for path in unfinished_files(out / PARTS / "*") if time.time() - path.stat().st_mtime > 3600]
    for path in left + old:
        path.unlink(missing_ok=True)


def _find_pending(items: list[Item], places: Places, retry_failed: bool) -> list[Item]:
    known = {place.item.path: place.item for place in places.values()}
    failed = {place.item.path for place in places.values() if place.error is not None} if retry_failed else set()
    return [item for item in number_items(items, known) if item.path not in known or item.path in failed]


def _finish(worker: Worker, content: dict[str, Any], old: set[tuple[str, int | None]], interrupted: bool) -> RunReport:
    """Merge the records, and draw the old ones again if the drawing has changed."""
    found = read_places(worker.out)
    keys = sorted(found, key=lambda key: (isinstance(found[key].item.id, str), found[key].item.id, key[1] or 0))
    write_results(worker.out, worker.predictor, worker.category_ids, [found[key] for key in keys])
    if worker.drawing != content["drawing"] and not interrupted:
        if worker.drawing is not None:
            worker.redraw([found[key] for key in keys if key in old and found[key].error is None])
        write_run(worker.out, content | dict(drawing=worker.drawing))
    failures = {place.item.path: place.error for place in found.values() if place.error is not None}
    predicted = {place.item.path for place in found.values()} - failures.keys()
    return RunReport(worker.out, len(predicted), [f"{path}: {error}" for path, error in failures.items()], interrupted)
