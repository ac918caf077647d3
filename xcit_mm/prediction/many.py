"""`predict_many`: many images, predicted into a folder. The same call resumes."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.errors import ArgumentError, preview
from ..utils.folders import (
    check_output,
    clear_folder,
    lock_folder,
    resume_folder,
    scratch_folder,
)
from ..utils.output import progress_bar, say
from ..utils.ranks import is_first, rank_and_size, wait_for_ranks
from .cluster import predict_on_ray
from .drawing import check_font
from .engine import Engine, Run
from .journal import list_pending, read_journals
from .listing import Item, Listing, find_items
from .predictor import Predictor, as_predictor
from .results import NEW, check_is_run, finish_replacing, replace_results, write_jsons

TAPS = ".taps"
"""Folder, in that of a run, of what the trunk computes of images that it sees whole."""


class Report(NamedTuple):
    """What `predict_many` has done.

    Attributes:
        out: Folder of the results.
        predicted: Number of images with a result, from this call or an earlier one.
        failures: Path and reason of each image that failed.
        is_new: Whether there was an image to predict.
    """

    out: Path
    predicted: int
    failures: list[str]
    is_new: bool

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        fix = "" if self.is_new else " (none of them now: overwrite them to predict all again)"
        return f"{self.predicted} predicted{failed}: {self.out}{fix}"


def predict_many(
    model: str | Path | Predictor,
    inputs: str | Path | Sequence[str | Path] | Listing,
    out: str | Path,
    *,
    checkpoint: str | Path | None = None,
    device: str | None = None,
    root: str | Path | None = None,
    draws: bool = True,
    draw_score: float = 0.3,
    font: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    retry_failed: bool = False,
    overwrite: bool = False,
    scratch: str | Path | None = None,
) -> Report | None:
    """Predict many images into a folder.

    Each image gets a drawing in `visualizations`, and a segmentor's map in `labels`. At the end,
    `images.json` lists the images, and `predictions.json` has a detector's objects as COCO results.
    The same call resumes after any stop: it predicts the images that have no record. An image that
    fails is a record with the reason. Processes of torchrun share the images.

    Args:
        model: A `Predictor`, or a model as `Predictor.from_pretrained` takes it.
        inputs: Images, folders of images, a COCO json, or what `find_items` returns.
        out: Folder of the results.
        checkpoint, device: As in `Predictor.from_pretrained`, for the name of a model. Each task
            of Ray chooses its own device.
        root: Folder of the paths in a COCO json. Default: that of the json.
        draws: Whether to draw the predictions.
        draw_score: Minimum score of the objects that are drawn.
        font: Path of the font of the names in drawings. Default: DejaVu Sans.
        workers: Number of processes that read images. Default: 2 if the model is on a GPU, else 0.
        ray: Address of a Ray cluster, 'auto' for that of this machine, or 'local' for a new one.
        retry_failed: Whether to predict failures again.
        overwrite: Whether to replace the results of earlier calls. They stay until all images are
            predicted; the new ones are in `OUT/.new` until then.
        scratch: Folder for what the trunk computes of images that it sees whole, if it needs more
            than 256 MiB. Default: `OUT/.taps`.

    Returns:
        Results and failures in the folder, or None in the processes of torchrun but the first.

    Raises:
        ArgumentError: If the inputs are not images, or if the folder holds an input, or results of
            another model or other options.
        OSError: If the font cannot be read, or the folder is not of a run, is in use, or cannot be
            written.
        RuntimeError: If a process that reads images died. Another call finds the image.

    Example:
        >>> from xcit_mm import Predictor, predict_many
        >>> report = predict_many("maskrcnn_xcit_tiny_12_p16", "photos", "predictions")
        >>> report.failures
        []
        >>> predictor = Predictor.from_pretrained("work_dirs/nuts", tile=800, batch_size=4)
        >>> report = predict_many(predictor, ["a.jpg", "b.jpg"], "in-tiles", draw_score=0.5)
    """
    listing = find_items(inputs, root)
    if listing.left_out:
        say(f"left out {len(listing.left_out)}: {preview(listing.left_out)}")
    if font is not None:
        font = os.path.abspath(font)  # for the tasks of Ray
        check_font(font)
    predictor = as_predictor(model, checkpoint, device)
    if workers is None:  # a model on the CPU uses all cores itself
        workers = 0 if predictor.device == "cpu" else 2
    if scratch is not None and not (predictor.view and predictor.view.whole):
        raise ArgumentError("scratch", "it is for images that are seen whole: set whole")
    folder = Path(out).absolute()  # tasks of Ray have another current folder
    drawing: dict[str, Any] = dict(font=font)
    if predictor.is_detector:
        drawing["min_score"] = draw_score
    run = Run(
        folder / NEW if overwrite else folder,
        _category_ids(predictor, listing.categories),
        drawing if draws else None,
        workers,
        folder / TAPS if scratch is None else scratch_folder(scratch, folder),
    )
    paths = {item.path for item in listing.items}
    check_output(folder, paths)
    with _open_results(predictor, run, folder, paths) if is_first() else nullcontext():
        wait_for_ranks()
        is_new = _predict_pending(predictor, run, listing.items, retry_failed, ray)
        wait_for_ranks()
        if not is_first():
            return None
        for unused in (run.scratch, folder / TAPS):  # a stopped call may have used the other one
            shutil.rmtree(unused, ignore_errors=True)
        classes = zip(run.category_ids, predictor.names, strict=True)
        categories = [dict(id=id_, name=name) for id_, name in classes]
        images, failures = write_jsons(run.out, categories, predictor.is_detector)
        if overwrite:
            replace_results(folder)
    return Report(Path(out), images, failures, is_new)


def _predict_pending(
    predictor: Predictor, run: Run, items: Sequence[Item], retry_failed: bool, ray: str | None
) -> bool:
    """Predict the items of this process that have no record. Return whether any process has one."""
    progress = read_journals(run.out)
    pending = list_pending(items, progress.records, retry_failed)
    rank, size = rank_and_size()
    own = [item for item in pending if item.checksum % size == rank]
    if ray is None:
        predicted = Engine(predictor, run).predict(own, progress.deaths)
    else:
        predicted = predict_on_ray(ray, predictor, run, own, progress.deaths)
    with progress_bar(len(own), "image", not own, desc="images", position=rank) as bar:
        for _ in predicted:
            bar.update()
    return bool(pending)


def _category_ids(predictor: Predictor, categories: Mapping[str, int]) -> list[int]:
    """Return the category id of each class for COCO files.

    Ids are looked up by name in `categories`. If there are none, classes are numbered from 1.
    """
    names = predictor.names
    if not predictor.is_detector:
        return list(range(len(names)))  # the values of the maps
    if not categories:
        return list(range(1, len(names) + 1))
    missing = [name for name in names if name not in categories]
    if missing:
        problem = f"the json has no category {preview(missing)}, which the model predicts"
        fix = f"it has {preview(categories)}: rename these in the json"
        raise ArgumentError("inputs", f"{problem}; {fix}")
    return [categories[name] for name in names]


@contextmanager
def _open_results(predictor: Predictor, run: Run, folder: Path, paths: set[str]) -> Iterator[None]:
    """Open the folder of a run, or the folder inside it for new results.

    Nothing of the user's is replaced, and nothing of other images is taken into new results.
    """
    replaces = run.out != folder
    check_is_run(folder)
    with lock_folder(folder):
        finish_replacing(folder)  # which a kill may have stopped
        if replaces and not paths.issuperset(read_journals(run.out).records):
            clear_folder(run.out)
        settings = dict(
            predictor.settings,
            category_ids=dict(value=run.category_ids, change="the classes have other ids"),
            drawing=dict(value=run.drawing, change="only the drawings would differ"),
        )
        resume_folder(run.out, settings, overwrite=replaces)
        yield
