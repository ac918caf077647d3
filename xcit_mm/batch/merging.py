"""Merging of shards: a report on the run, and the JSON files that pycocotools reads."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ..prediction.results import coco_results
from ..utils.atomic import atomic_write
from .manifest import IMAGES, PREDICTIONS
from .rasters import merge_raster
from .run import Run
from .shards import Record


@dataclass
class RunReport:
    """Result of a run.

    Attributes:
        out: Folder of the results.
        inputs: Number of inputs.
        predicted: Number of inputs that were predicted, now or earlier.
        failed: Number of inputs that failed.
        failures: Path and reason of the first 20 failures.
        pending: Number of shards that are not completed: after Ctrl-C, or if only failures were predicted again.
        interrupted: Whether Ctrl-C ended the run. The results of completed inputs are merged.
    """

    out: Path
    inputs: int
    predicted: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    pending: int = 0
    interrupted: bool = False

    def __str__(self) -> str:
        return f"{'interrupted: ' * self.interrupted}{self.predicted} of {self.inputs} inputs predicted: {self.out}"


def merge_shards(run: Run, interrupted: bool = False) -> RunReport:
    """Count the predictions and failures, and write the JSON files unless the format is Parquet.

    Records are read one by one, so the memory does not depend on their number. If a shard is damaged, the JSON files
    are unchanged.
    """
    pending = run.pending()
    report = RunReport(run.out, len(run.inputs) - len(run.dropped), pending=len(pending), interrupted=interrupted)
    incomplete = {run.shards[shard].inputs.start for shard in pending}
    with contextlib.ExitStack() as files:
        write_image = write_result = None
        if run.options.format != "parquet":
            write_image = files.enter_context(_open_list(run.out / IMAGES, '{"images": [', _end_of_images(run)))
            if run.model.is_detector:
                write_result = files.enter_context(_open_list(run.out / PREDICTIONS, "[", "]"))
        for number, records in groupby(_read_records(run, brief=write_image is None), lambda record: record.number):
            failed = False
            for record in records:
                if record.error is not None:
                    failed = True
                    if len(report.failures) < 20:
                        report.failures.append(f"{record.path}: {record.error}")
                elif write_image is not None:
                    image = dict(id=record.id, file_name=record.file_name, height=record.height, width=record.width)
                    write_image(image if record.frame is None else image | dict(frame=record.frame))
                    if write_result is not None:
                        for result in coco_results(record._asdict(), record.id, run.model.category_ids):
                            write_result(result)
            report.failed += failed
            # A video counts when all its frames are predicted.
            report.predicted += not failed and not (run.inputs[number].is_video and number in incomplete)
    return report


def _end_of_images(run: Run) -> str:
    names = zip(run.model.category_ids, run.model.classes, strict=True)
    categories = json.dumps([dict(id=id_, name=name) for id_, name in names])
    return f'], "categories": {categories}, "annotations": []}}'


@contextlib.contextmanager
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


def _read_records(run: Run, brief: bool = False) -> Iterator[Record]:
    """Read the records of all shards. A raster has one record when all its shards are completed."""
    for inputs, group in groupby(range(len(run.shards)), key=lambda shard: run.shards[shard].inputs):
        shards = list(group)
        if run.inputs[inputs.start].size is None:
            yield from run.records(shards[0], brief)
        elif all(run.shard_path(shard).exists() for shard in shards):
            yield merge_raster(run, range(shards[0], shards[-1] + 1))
