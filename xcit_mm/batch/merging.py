"""The parts of a run told as a whole: what failed, and the json files that pycocotools reads."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import IO, Any, NamedTuple

from ..utils.atomic import atomic_write
from .manifest import IMAGES, PREDICTIONS, Run
from .shards import Row

__all__ = ["Summary", "coco_image", "coco_results", "merge"]

_TOLD = 20


class Summary(NamedTuple):
    """How a run went, so far.

    Attributes:
        done: Number of inputs that were predicted.
        failed: Number of inputs that could not be.
        reasons: A line for each of the first of these.
    """

    done: int
    failed: int
    reasons: list[str]


def merge(run: Run) -> Summary:
    """Count what the parts hold, and, unless they are Parquet, write its json files, with a row at a time in memory.

    Raises:
        DamagedPart: If a part is not whole; then the files are as they were.
        OSError: If they cannot be written.
    """
    counted = _Counted(run)
    if run.options["format"] == "parquet":
        for _ in counted.rows(brief=True):
            pass
        return counted.summary()
    model = run.identity["model"]
    categories = [dict(id=id_, name=name) for id_, name in zip(model["category_ids"], model["classes"], strict=True)]
    with contextlib.ExitStack() as files:
        images = _List(files.enter_context(atomic_write(run.out / IMAGES)), b'{"images": [')
        predictions = None
        if model["is_detector"]:
            predictions = _List(files.enter_context(atomic_write(run.out / PREDICTIONS)), b"[")
        for image_id, row in _numbered(counted.rows()):
            images.add(coco_image(row, image_id))
            if predictions is not None:
                for result in coco_results(row, image_id, model["category_ids"]):
                    predictions.add(result)
        images.end(b'], "categories": %s, "annotations": []}' % json.dumps(categories).encode())
        if predictions is not None:
            predictions.end(b"]")
    return counted.summary()


class _Counted:
    """Rows of all parts, counted while they are read."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen, self._failed = 0, 0
        self._reasons: list[str] = []

    def rows(self, brief: bool = False) -> Iterator[Row]:
        last = -1
        for parts in _by_input(self._run):
            first = self._run.inputs[self._run.parts[parts.start].inputs.start]
            is_cut = first.is_video and not self._run.path(parts.start).exists()
            for row in _merged_scene(self._run, parts) if first.size else self._run.rows(parts.start, brief):
                self._seen += row.number != last and not is_cut  # of a video, Ctrl-C keeps the first frames
                last = row.number
                if row.error is not None:
                    self._failed += 1
                    if self._failed <= _TOLD:
                        self._reasons.append(f"{row.path}: {row.error}")
                yield row

    def summary(self) -> Summary:
        return Summary(self._seen - self._failed, self._failed, self._reasons)


def _by_input(run: Run) -> Iterator[range]:
    """Parts one by one, but all of a scene together."""
    for _, parts in groupby(range(len(run.parts)), key=lambda part: run.parts[part].inputs):
        together = list(parts)
        yield range(together[0], together[-1] + 1)


def _merged_scene(run: Run, parts: range) -> list[Row]:
    """The row of a scene; none while parts of it are missing."""
    from .rasters import merge_scene  # what it needs is an extra

    return [merge_scene(run, parts)] if all(run.path(part).exists() for part in parts) else []


def _numbered(rows: Iterable[Row]) -> Iterator[tuple[int | float | str, Row]]:
    """Rows that were predicted, with ids: a COCO json's, or from 1 on, where what failed has one too."""
    for number, row in enumerate(rows, start=1):
        if row.error is None:
            yield number if row.image_id is None else row.image_id, row


class _List:
    """A list in a json file that is written as it grows."""

    def __init__(self, file: IO[bytes], start: bytes) -> None:
        self._file, self._between = file, b""
        file.write(start)

    def add(self, value: dict[str, Any]) -> None:
        self._file.write(self._between + json.dumps(value).encode())
        self._between = b",\n"

    def end(self, rest: bytes) -> None:
        self._file.write(rest)


def coco_image(row: Row, image_id: int | float | str) -> dict[str, Any]:
    """An image as COCO lists it."""
    image = dict(id=image_id, file_name=row.file_name, height=row.height, width=row.width)
    return image if row.frame is None else image | dict(frame=row.frame)


def coco_results(row: Row, image_id: int | float | str, category_ids: list[int]) -> Iterator[dict[str, Any]]:
    """Results as pycocotools' `COCO.loadRes` reads them: boxes as left, top, width and height, masks as text."""
    for number, (left, top, right, bottom) in enumerate(row.boxes or []):
        assert row.labels is not None and row.scores is not None  # as many as boxes
        result: dict[str, Any] = dict(
            image_id=image_id,
            category_id=category_ids[row.labels[number]],
            bbox=[left, top, right - left, bottom - top],
            score=row.scores[number],
        )
        if row.masks is not None:
            result["segmentation"] = dict(size=[row.height, row.width], counts=row.masks[number])
        yield result
