"""A run over many inputs as a folder: what it is, which of its parts are done, and who may work in it."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

import mmcv
import mmengine
import numpy as np
import torch
from mmengine.config import Config

from ..prediction.tiles import windows
from ..utils.atomic import atomic_write, unfinished_files
from ..utils.configs import tested_metainfo
from ..version import __version__
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from .inputs import Input
from .shards import FORMATS, DamagedPart, Row, Writer, interrupted, part_file, read_rows

__all__ = ["LABELS", "PICTURES", "Run", "describe", "open_run", "start_run"]

RUN, INPUTS, PARTS, PICTURES, LABELS = "run.json", "inputs.jsonl", "parts", "pictures", "labels"
IMAGES, PREDICTIONS, INSTANCES = "images.json", "predictions.json", "instances"
_LOCK = ".lock"
_TILES = 64  # of a scene in a part, or a row of tiles if it has more
_ALL = (PARTS, PICTURES, LABELS, INSTANCES, IMAGES, PREDICTIONS, INPUTS, RUN)  # the mark of a run goes last


class Run:
    """A run that was started.

    Args:
        out: Its folder.
        identity: As of `describe`.
        inputs: All of them.

    Attributes:
        options: Of `identity`.
        parts: Of which a video is one, and a scene several.
        lock: An open file that keeps others from starting a run in the folder; None where the run was joined.
    """

    def __init__(self, out: Path, identity: dict[str, Any], inputs: list[Input]) -> None:
        self.out, self.identity, self.inputs = out, identity, inputs
        self.options: dict[str, Any] = identity["options"]
        self.format = FORMATS[self.options["format"]]
        self.parts = _cut(inputs, self.options)
        self.lock: IO[bytes] | None = None

    def path(self, part: int) -> Path:
        return self.out / PARTS / f"part-{part:06}{self.format.suffix}"

    def missing(self) -> list[int]:
        """Parts that have no file."""
        there = {entry.name for entry in os.scandir(self.out / PARTS)}
        return [part for part in range(len(self.parts)) if self.path(part).name not in there]

    def failed(self) -> list[int]:
        """Parts that are done but for inputs that could not be predicted, or that are damaged."""
        done = sorted(set(range(len(self.parts))) - set(self.missing()))
        return [part for part in done if self._has_failed(part)]

    def kept(self, part: int, brief: bool = False) -> dict[int, list[Row]]:
        """Rows of a part that are not predicted again where what failed is, by their inputs; see `read_rows`."""
        try:
            rows = {number: list(rows) for number, rows in groupby(self.rows(part, brief), key=lambda row: row.number)}
        except DamagedPart:
            return {}
        return {number: ones for number, ones in rows.items() if not any(row.error for row in ones)}

    def _has_failed(self, part: int) -> bool:
        try:
            return any(row.error for row in self.rows(part, brief=True))
        except DamagedPart:
            return True

    def rows(self, part: int, brief: bool = False) -> Iterator[Row]:
        """What was found in a part, in the inputs' order, as far as it is done; see `read_rows`."""
        path = self.path(part)
        for there in (path, interrupted(path)):
            if there.exists():
                yield from read_rows(there, self.format, brief)
                return

    def writing(self, part: int) -> AbstractContextManager[Writer]:
        """Takes the rows of a part; see `part_file`."""
        return part_file(self.path(part), self.format)


class Part(NamedTuple):
    """What is predicted by one hand, and written to one file.

    Attributes:
        inputs: Numbers of the inputs.
        strips: Rows of tiles of a scene, the only input.
        weight: How many images, or tiles, there are.
    """

    inputs: range
    strips: range | None
    weight: int


def _cut(inputs: list[Input], options: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    open_for_more = False
    for number, one in enumerate(inputs):
        if one.size is not None:
            parts += _cut_scene(number, one.size, *tiles_of(one.size, options))
        elif open_for_more and not one.is_video and parts[-1].weight < options["part_size"]:
            first = parts[-1].inputs.start
            parts[-1] = Part(range(first, number + 1), None, number + 1 - first)
        else:
            parts.append(Part(range(number, number + 1), None, 1))
        open_for_more = one.size is None and not one.is_video
    return parts


def tiles_of(size: Sequence[int], options: dict[str, Any]) -> tuple[int, int]:
    """Tile and overlap of a scene, by default as large as the config's images."""
    tile, overlap = options["tile"] or options["scene_tile"] or max(size), options["overlap"]
    return tile, tile // 4 if overlap is None else overlap


def _cut_scene(number: int, size: Sequence[int], tile: int, overlap: int) -> Iterator[Part]:
    rows, in_row = (len(windows(length, tile, overlap)) for length in size)
    step = max(1, _TILES // in_row)
    for first in range(0, rows, step):
        strips = range(first, min(first + step, rows))
        yield Part(range(number, number + 1), strips, len(strips) * in_row)


def describe(
    cfg: Config,
    checkpoint: str,
    given: str,
    inputs: list[Input],
    options: dict[str, Any],
    category_ids: list[int] | None = None,
) -> dict[str, Any]:
    """What makes a run this run and no other, for run.json.

    Args:
        cfg: Of the model.
        checkpoint: A path, a URL or `xcit://NAME`.
        given: What the inputs were found at.
        inputs: All of them.
        options: Whatever changes the results: not the device, nor how many images are predicted at a time.
        category_ids: Of the classes; default: from 1 on, a segmentor's from 0, as the segmentation maps have them.
    """
    metainfo, is_detector = tested_metainfo(cfg), cfg.get("default_scope") == "mmdet"
    classes, palette = list(metainfo["classes"]), metainfo.get("palette")
    file = ensure_downloaded(checkpoint) if checkpoint.startswith(REMOTE_PREFIXES) else checkpoint
    return dict(
        config=dict(path=os.path.abspath(cfg.filename), text=cfg.pretty_text),
        checkpoint=dict(path=checkpoint, sha256=_digest_of_file(file)),
        options=options,
        model=dict(
            is_detector=is_detector,
            classes=classes,
            palette=[list(map(int, colour)) for colour in palette] if isinstance(palette, list | tuple) else None,
            category_ids=category_ids or list(range(int(is_detector), int(is_detector) + len(classes))),
        ),
        versions=_versions(cfg.get("default_scope")),
        inputs=dict(given=given, count=len(inputs), sha256=_digest(_lines(inputs))),
    )


def _versions(library: str) -> dict[str, str]:
    versions = dict(xcit_mm=__version__, torch=torch.__version__, numpy=np.__version__, mmengine=mmengine.__version__)
    versions["mmcv"] = mmcv.__version__
    if library in ("mmdet", "mmseg"):
        versions[library] = __import__(library).__version__
    return versions


def _digest_of_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return _digest(iter(lambda: file.read(2**20), b""))


def _digest(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _lines(inputs: list[Input]) -> Iterator[bytes]:
    return (json.dumps(one).encode() + b"\n" for one in inputs)


def start_run(out: Path, identity: dict[str, Any], inputs: list[Input], overwrite: bool = False) -> Run:
    """A run in a folder, new or gone on with; no other process can start one there while it is held.

    Args:
        out: The folder.
        identity: As of `describe`.
        inputs: All of them.
        overwrite: Whether to remove what another run, or this one, has left there.

    Raises:
        FileExistsError: If another run has left parts there, or something that is of no run is in the way.
        BlockingIOError: If a run is at work there.
        OSError: If the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    is_first = not (out / _LOCK).exists()
    lock = _lock(out)
    there = [out / name for name in _ALL if (out / name).exists()]
    try:
        before = _identity_in(out) if there else identity
    except FileExistsError:
        lock.close()
        if is_first:
            (out / _LOCK).unlink()
        raise
    if there and not overwrite:
        difference = _difference(before, identity)
        if difference and _holds_rows(out):
            raise FileExistsError(
                f"{out} holds the parts of another run: {difference}; give another --out, or --overwrite to start anew"
            )
        overwrite = difference is not None
    if overwrite:
        for path in there:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if overwrite or not there:  # the mark of a run comes first: what is stopped from here on can be gone on with
        with atomic_write(out / RUN) as file:
            file.write(json.dumps(identity, indent=2).encode())
    (out / PARTS).mkdir(exist_ok=True)
    for path in (out / RUN, out / INPUTS, out / IMAGES, out / PREDICTIONS, out / PARTS / "part-*"):
        for leftover in unfinished_files(path):
            leftover.unlink()
    if not (out / INPUTS).exists():
        with atomic_write(out / INPUTS) as file:
            file.writelines(_lines(inputs))
    run = Run(out, identity, inputs)
    run.lock = lock
    return run


def _identity_in(out: Path) -> dict[str, Any]:
    """What the run in a folder is.

    Raises:
        FileExistsError: If the folder is of something else.
    """
    try:
        there = json.loads((out / RUN).read_bytes())
    except FileNotFoundError:
        first = next(out / name for name in _ALL if (out / name).exists())
        raise FileExistsError(f"{first} is not of an earlier run, which leaves {RUN}: give another --out") from None
    except ValueError:
        there = None
    if not isinstance(there, dict) or not there.keys() >= {"config", "checkpoint", "options", "inputs"}:
        raise FileExistsError(f"{out / RUN} is not of an earlier run: give another --out")
    return there


def _holds_rows(out: Path) -> bool:
    """Whether something was predicted; pictures and maps of a part that was killed count for nothing."""
    return any(any((out / PARTS).glob(pattern)) for pattern in ("part-*", interrupted(Path("part-*")).name))


def open_run(out: Path) -> Run:
    """The run in a folder that another process has started."""
    with (out / INPUTS).open() as lines:
        inputs = [Input(*json.loads(line)) for line in lines]
    return Run(out, json.loads((out / RUN).read_text()), inputs)


def _lock(out: Path) -> IO[bytes]:
    """Keep other runs away as long as the file is open and this process lives; children do not inherit it."""
    file = (out / _LOCK).open("wb")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError(f"a run is at work in {out}: wait for it, or give another --out") from None
        print(f"{out} cannot be locked ({error.strerror}): start no second run there", file=sys.stderr)
    return file


def _difference(there: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first thing by which two runs differ, in words."""
    tellers: dict[str, Callable[[Any, Any], str]] = dict(
        config=_other_config,
        checkpoint=lambda a, b: (
            f"its checkpoint was {a['path']} ({a['sha256'][:8]}), is {b['path']} ({b['sha256'][:8]})"
        ),
        options=_other_value,
        model=_other_value,
        versions=_other_value,
        inputs=lambda a, b: f"its inputs were {a['count']} at {a['given']}, are {b['count']} at {b['given']}",
    )
    decisive = dict(config="text", checkpoint="sha256", inputs="sha256")
    for part, tell in tellers.items():
        one, other = there.get(part, {}), json.loads(json.dumps(new[part]))
        key = decisive.get(part)
        if (one.get(key) != other[key]) if key else (one != other):
            return tell(one, other)
    return None


def _other_value(there: dict[str, Any], new: dict[str, Any]) -> str:
    none = "not given"  # as of a run that another version has started; None may be a value
    name = next(name for name in {**there, **new} if there.get(name, none) != new.get(name, none))
    return f"its {name} was {there.get(name, none)}, is {new.get(name, none)}"


def _other_config(there: dict[str, Any], new: dict[str, Any]) -> str:
    pairs = zip_longest(there["text"].splitlines(), new["text"].splitlines(), fillvalue="")
    line, other = next(pair for pair in pairs if pair[0] != pair[1])
    return f"its config had '{line.strip()}', {new['path']} has '{other.strip()}'"
