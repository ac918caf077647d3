"""Merging of shards: a report on the run, and the JSON files that pycocotools reads."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from ..prediction.results import coco_results
from ..utils.atomic import atomic_write
from .manifest import IMAGES, PREDICTIONS
from .rasters import merge_raster
from .run import Run
from .shards import Record

__all__ = ["RunReport", "merge_shards"]


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
    if run.options.format == "parquet":
        for _ in _count(_read_records(run, brief=True), run, pending, report):
            pass
        return report
    with contextlib.ExitStack() as files:
        images = _JsonList(files.enter_context(atomic_write(run.out / IMAGES)), b'{"images": [')
        results = None
        if run.model.is_detector:
            results = _JsonList(files.enter_context(atomic_write(run.out / PREDICTIONS)), b"[")
        for record in _count(_read_records(run), run, pending, report):
            if record.error is not None:
                continue
            image = dict(id=record.id, file_name=record.file_name, height=record.height, width=record.width)
            images.add(image if record.frame is None else image | dict(frame=record.frame))
            if results is not None:
                for result in coco_results(record._asdict(), record.id, run.model.category_ids):
                    results.add(result)
        names = zip(run.model.category_ids, run.model.classes, strict=True)
        categories = json.dumps([dict(id=id_, name=name) for id_, name in names])
        images.file.write(b'], "categories": %s, "annotations": []}' % categories.encode())
        if results is not None:
            results.file.write(b"]")
    return report


def _read_records(run: Run, brief: bool = False) -> Iterator[Record]:
    """Read the records of all shards. A raster has one record when all its shards are completed."""
    for inputs, group in groupby(range(len(run.shards)), key=lambda shard: run.shards[shard].inputs):
        shards = list(group)
        if run.inputs[inputs.start].size is None:
            yield from run.records(shards[0], brief)
        elif all(run.shard_path(shard).exists() for shard in shards):
            yield merge_raster(run, range(shards[0], shards[-1] + 1))


def _count(records: Iterator[Record], run: Run, pending: list[int], report: RunReport) -> Iterator[Record]:
    """Pass records on, and add them to a report. A video counts when all its frames are predicted."""
    incomplete = {run.shards[shard].inputs.start for shard in pending}
    last = -1
    for record in records:
        if record.number != last and not (run.inputs[record.number].is_video and record.number in incomplete):
            report.predicted += 1
        last = record.number
        if record.error is not None:
            report.predicted -= 1
            report.failed += 1
            if report.failed <= 20:
                report.failures.append(f"{record.path}: {record.error}")
        yield record


class _JsonList:
    """List in a JSON file, written item by item."""

    def __init__(self, file: IO[bytes], start: bytes) -> None:
        self.file, self._separator = file, b""
        file.write(start)

    def add(self, value: dict[str, Any]) -> None:
        self.file.write(self._separator + json.dumps(value).encode())
        self._separator = b",\n"
