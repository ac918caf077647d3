"""`predict_many`: many images, predicted into a folder. The same call resumes."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..utils.errors import preview
from ..utils.folders import SETTINGS, check_output, lock_folder, open_folder, scratch_folder
from ..utils.output import progress_bar
from ..utils.ranks import rank_and_size
from .cluster import predict_on_ray, wait_for_ranks
from .engine import Engine, taps_name
from .journal import JOURNAL, Journal, list_pending, read_journals
from .listing import Item, Listing
from .predictor import Predictor
from .results import IMAGES, LABELS, PREDICTIONS, VISUALIZATIONS, result_paths, write_jsons

NEW = ".new"
"""Folder, in that of a run, of the results that replace it when they are complete."""
COMPLETE = "complete"
MOVING = "moving"
"""Files in it that say so, and that the former results are removed."""
TAPS = ".taps"
"""Folder, in that of a run, of what the trunk computes of images that it sees whole."""


class RunReport(NamedTuple):
    """Result of a run.

    Attributes:
        out: Folder of the results.
        predicted: Number of images with a result, of this call or an earlier one.
        failures: Path and reason of each image that failed.
        is_new: Whether there was an image to predict.
    """

    out: Path
    predicted: int
    failures: list[str]
    is_new: bool

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        fix = "" if self.is_new else " (none of them now: --overwrite predicts all again)"
        return f"{self.predicted} predicted{failed}: {self.out}{fix}"


def predict_many(
    listing: Listing,
    predictor: Predictor,
    out: str | Path,
    drawing: dict[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    scratch: str | Path | None = None,
) -> RunReport | None:
    """Predict the items that have no record in a folder, as docs/prediction.md describes.

    Each rank of torchrun predicts items of its own.

    Args:
        listing: From `find_items`.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        workers: Number of processes that read images. Default: 2 beside a GPU, else 0.
        ray: Address of a Ray cluster, 'auto' for that of this machine, or 'local' for a new one.
        overwrite: Whether to replace the results of earlier calls. They stay until all images are
            predicted; the new ones are in `OUT/.new` until then.
        retry_failed: Whether to predict failures again.
        scratch: Folder for what the trunk computes of images that it sees whole, if it needs more
            than 256 MiB. Default: `OUT/.taps`.

    Returns:
        Results and failures in the folder, or None in the ranks of torchrun other than 0.

    Raises:
        ValueError: If the folder holds an input, or results of another model or option.
        OSError: If the folder is not of a run, is in use, or cannot be written.
        RuntimeError: If a process that reads images died. Another call finds the image.
    """
    if workers is None:  # a model on the CPU uses all cores itself
        workers = 0 if predictor.device == "cpu" else 2
    out = Path(os.path.abspath(out))
    category_ids = _category_ids(predictor, listing.categories)
    folder = out / NEW if overwrite else out
    taps = out / TAPS if scratch is None else scratch_folder(scratch, out)
    engine = Engine(predictor, Journal(folder), folder, category_ids, drawing, workers, taps)
    rank, size = rank_and_size()
    with nullcontext() if rank else _open_results(engine, listing, out):
        wait_for_ranks()
        progress = read_journals(folder)
        pending = list_pending(listing.items, progress.records, retry_failed)
        is_new = bool(pending)
        if rank == 0:
            _remove_taps(taps, pending)
        if ray is None:
            pending = [item for item in pending if crc32(os.fsencode(item.path)) % size == rank]
            predicted = engine.predict(pending, progress.deaths)
        else:
            predicted = predict_on_ray(ray, engine, pending, progress.deaths)
        total = len(pending)
        with progress_bar(total, "image", position=rank, disable=not total) as bar:
            for _ in predicted:
                bar.update()
        wait_for_ranks()
        if rank:
            return None
        _remove_taps(taps, ())
        report = _report(engine, is_new)
        if folder != out:
            (folder / COMPLETE).touch()
            _replace_results(out)
        return report._replace(out=out)


def _remove_taps(folder: Path, pending: Iterable[Item]) -> None:
    """Remove what a kill left of images that are not pending, and the folder if it is empty."""
    kept = {taps_name(item) for item in pending}
    for path in folder.glob("*"):
        if path.name not in kept:
            shutil.rmtree(path)
    with suppress(OSError):
        folder.rmdir()


def _category_ids(predictor: Predictor, categories: Mapping[str, int]) -> list[int]:
    """Return the ids of the classes in COCO files: by name in a json's categories, or from 1 on."""
    names = predictor.names
    if not predictor.is_detector:
        return list(range(len(names)))  # the values of the maps
    if not categories:
        return list(range(1, len(names) + 1))
    missing = [name for name in names if name not in categories]
    if missing:
        problem = f"the json has no category {preview(missing)}, a class of the model"
        raise ValueError(f"{problem}, but {preview(categories)}: rename them in the json")
    return [categories[name] for name in names]


@contextmanager
def _open_results(engine: Engine, listing: Listing, out: Path) -> Iterator[None]:
    """Open the folder of an engine, `out` or the new results in it, if nothing of the user's is
    replaced.
    """
    paths = {item.path for item in listing.items}
    check_output(out, paths)
    folder = engine.out
    settings = dict(category_ids=engine.category_ids, drawing=engine.drawing)
    settings |= engine.predictor.settings
    with lock_folder(out, "--out") if folder != out else nullcontext():
        _replace_results(out)  # which a kill may have stopped
        for name in (JOURNAL, VISUALIZATIONS, LABELS, IMAGES, PREDICTIONS):
            if (out / name).exists() and not (out / SETTINGS).exists():
                raise FileExistsError(f"{out / name} is not of a run: give another --out")
        if folder != out and not paths.issuperset(read_journals(folder).records):
            shutil.rmtree(folder)  # of other images
        with open_folder(folder, settings, folder != out, lambda: _list_results(folder)):
            for path in (folder / JOURNAL).glob("*.unfinished"):
                path.unlink()
            yield


def _list_results(folder: Path) -> list[Path]:
    """List the files of a run in a folder: drawings, maps and jsons, and at the end its journals,
    without which the others would be unknown.
    """
    results = [folder / IMAGES, folder / PREDICTIONS]
    for record in read_journals(folder).records.values():
        results += result_paths(folder, record["name"])
    return [*results, *(folder / JOURNAL).glob("*")]


def _replace_results(out: Path) -> None:
    """Replace the results of a run by the complete new ones in its folder, if there are any.

    After a kill, the next call goes on: what has moved is not removed again.
    """
    new = out / NEW
    if (new / COMPLETE).exists():
        for path in _list_results(out):
            path.unlink(missing_ok=True)
        (new / COMPLETE).rename(new / MOVING)
    if not (new / MOVING).exists():
        return
    for path in new.rglob("*"):
        if path.is_file() and path.name not in (MOVING, ".lock"):
            target = out / path.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    shutil.rmtree(new)


def _report(engine: Engine, is_new: bool) -> RunReport:
    predictor = engine.predictor
    classes = zip(engine.category_ids, predictor.names, strict=True)
    categories = [dict(id=id_, name=name) for id_, name in classes]
    images = []
    failures = []
    for record in read_journals(engine.out).records.values():
        if "error" in record:
            failures.append(f"{record['path']}: {record['error']}")
        else:
            place = dict(id=record["id"], file_name=record["name"])
            images.append(place | dict(height=record["height"], width=record["width"]))
    coco = dict(images=images, categories=categories, annotations=[])
    write_jsons(engine.out, coco, predictor.is_detector)
    return RunReport(engine.out, len(images), failures, is_new)
