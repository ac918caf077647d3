"""A run in its folder: its shards and their states, its files, and the lock that admits one run at a time."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..prediction.tiles import windows
from ..utils.atomic import atomic_write, unfinished_files
from ..utils.cli import print_line
from .inputs import Input
from .manifest import (
    FILES,
    IMAGES,
    INPUTS,
    MANIFEST,
    PREDICTIONS,
    SHARDS,
    SUSPECTS,
    ModelInfo,
    read_inputs,
    read_manifest,
    resume_manifest,
    write_manifest,
)
from .options import Drawing, Execution, RunOptions
from .shards import FORMATS, DamagedShard, Record, interrupted_path, read_records, write_records

_LOCK = ".lock"
TILES_PER_SHARD = 64  # of a raster, or one row of tiles if it has more


class Shard(NamedTuple):
    """Inputs that one worker predicts and stores in one file."""

    inputs: range  # indices of the inputs
    tile_rows: range  # of a raster, which is then the only input
    size: int  # number of images and videos, or of tiles, without dropped inputs


class Run:
    """A run in its folder. The file `lock` keeps other runs out of the folder while it is open.

    Attributes:
        dropped: Numbers of the inputs that an update dropped.
        suspects: Shard and number of each input that was in flight when a process died, and how often a process that
            predicted it alone has died, or the reason why it fails.
    """

    def __init__(
        self,
        out: Path,
        manifest: dict[str, Any],
        inputs: list[Input],
        execution: Execution | None = None,
        drawing: Drawing | None = None,
        lock: IO[bytes] | None = None,
    ) -> None:
        self.out, self.manifest, self.inputs, self.lock = out, manifest, inputs, lock
        self.execution, self.drawing = execution or Execution(), drawing or Drawing()
        self.options = RunOptions(**manifest["options"])
        self.model = ModelInfo(**manifest["model"])
        self.format = FORMATS[self.options.format]
        self.dropped = set(manifest["inputs"]["dropped"])
        self.shards = self._split()
        self.suspects = self.read_suspects()
        self.report: Callable[[str], None] = print_line  # for a line about an input

    def tiling(self, size: Sequence[int]) -> tuple[int, int]:
        """Return tile and overlap in pixels for a raster of this height and width."""
        tile, overlap = self.options.tile or self.model.image_side or max(size), self.options.overlap
        return tile, tile // 4 if overlap is None else overlap

    def _split(self) -> list[Shard]:
        """Split the inputs. A video is a shard of its own, a raster has one or more."""
        shards: list[Shard] = []
        starts = set(self.manifest["inputs"]["starts"])
        for number, input_ in enumerate(self.inputs):
            own, size = range(number, number + 1), int(number not in self.dropped)
            if input_.size is not None:
                rows, columns = (len(windows(length, *self.tiling(input_.size))) for length in input_.size)
                step = max(1, TILES_PER_SHARD // columns)
                for first in range(0, rows, step):
                    tile_rows = range(first, min(first + step, rows))
                    shards.append(Shard(own, tile_rows, size * len(tile_rows) * columns))
                continue
            joins = number not in starts and input_.is_image and self.inputs[number - 1].is_image
            if joins and len(shards[-1].inputs) < self.options.shard_size:
                first = shards[-1].inputs.start
                shards[-1] = Shard(range(first, number + 1), range(0), shards[-1].size + size)
            else:
                shards.append(Shard(own, range(0), size))
        return shards

    def numbers(self, shard: int) -> list[int]:
        """Return the numbers of a shard's inputs, without those that an update dropped."""
        return [number for number in self.shards[shard].inputs if number not in self.dropped]

    def shard_path(self, shard: int) -> Path:
        return self.out / SHARDS / f"shard-{shard:06}{self.format.suffix}"

    def to_predict(self) -> list[int]:
        """Return the shards to predict: those that are pending, or with `retry_failed` those with failures."""
        return self.failed() if self.execution.retry_failed else self.pending()

    def size(self, shards: Iterable[int]) -> int:
        """Return the number of inputs or tiles to predict in some shards."""
        retry = self.execution.retry_failed
        completed = sum(len(self.kept_records(shard, brief=True)) for shard in shards) if retry else 0
        return sum(self.shards[shard].size for shard in shards) - completed

    def record(self, number: int) -> Record:
        """Return a record of an input without a result."""
        input_ = self.inputs[number]
        return Record(number, input_.path, input_.name, input_.image_id)

    def pending(self) -> list[int]:
        """Return the shards without a file."""
        files = {entry.name for entry in os.scandir(self.out / SHARDS)}
        shards = (shard for shard in range(len(self.shards)) if self.shards[shard].size)
        return [shard for shard in shards if self.shard_path(shard).name not in files]

    def completed(self) -> list[int]:
        return sorted(set(range(len(self.shards))) - set(self.pending()))

    def in_flight_path(self, shard: int) -> Path:
        """Return the path of a list of inputs in flight. A number stands in it once, and after completion twice."""
        return self.out / SHARDS / f".in-flight-{shard:06}"

    def read_suspects(self) -> dict[tuple[int, int], int | str]:
        path = self.out / SUSPECTS
        suspects = json.loads(path.read_text()) if path.exists() else []
        return {(shard, number): deaths for shard, number, deaths in suspects}

    def collect_suspects(self) -> None:
        """Add the inputs that were in flight in processes that died."""
        for path in (self.out / SHARDS).glob(".in-flight-*"):
            for number, count in Counter(path.read_text().split()).items():
                if count % 2 and int(number) not in self.dropped:
                    self.suspects.setdefault((int(path.name.rpartition("-")[2]), int(number)), 0)
            self.save_suspects()
            path.unlink()

    def deferred(self) -> list[tuple[int, int]]:
        """Return the suspects of completed shards, where they are recorded as failures."""
        return [key for key in self.suspects if self.shard_path(key[0]).exists()]

    def save_suspects(self) -> None:
        if self.suspects:
            with atomic_write(self.out / SUSPECTS) as file:
                file.write(json.dumps([[*key, deaths] for key, deaths in self.suspects.items()]).encode())
        else:
            (self.out / SUSPECTS).unlink(missing_ok=True)

    def remove_dropped(self) -> None:
        """Remove the records of dropped inputs from the completed shards."""
        for shard, (inputs, _, size) in enumerate(self.shards):
            path = self.shard_path(shard)
            if self.dropped.isdisjoint(inputs):
                continue
            with contextlib.suppress(DamagedShard, FileNotFoundError):
                if not size:
                    path.unlink()
                elif any(record.number in self.dropped for record in read_records(path, self.format, brief=True)):
                    with write_records(path, self.format) as writer:
                        for record in read_records(path, self.format):
                            if record.number not in self.dropped:
                                writer.write(record)

    def failed(self) -> list[int]:
        """Return the completed shards that have failed inputs or are damaged."""

        def has_failures(shard: int) -> bool:
            try:
                return any(record.error for record in self.records(shard, brief=True))
            except DamagedShard:
                return True

        return list(filter(has_failures, self.completed()))

    def records(self, shard: int, brief: bool = False) -> Iterator[Record]:
        """Read the records of a shard, in the order of the inputs, as far as it is completed; see `read_records`."""
        path = self.shard_path(shard)
        for file in (path, interrupted_path(path)):
            if file.exists():
                yield from read_records(file, self.format, brief)
                return

    def kept_records(self, shard: int, brief: bool = False, alone: int | None = None) -> dict[int, list[Record]]:
        """Read the records that stay when failures are predicted again, by input; none if the shard is damaged.

        If the number of an input is given, only that input is predicted again.
        """
        try:
            groups = groupby(self.records(shard, brief), key=lambda record: record.number)
            by_input = {number: list(group) for number, group in groups}
        except DamagedShard:
            return {}
        if alone is not None:
            return {number: group for number, group in by_input.items() if number != alone}
        return {number: group for number, group in by_input.items() if not any(record.error for record in group)}


def start_run(
    out: Path,
    manifest: dict[str, Any],
    inputs: list[Input],
    execution: Execution | None = None,
    drawing: Drawing | None = None,
) -> Run:
    """Start or resume a run in a folder, and lock the folder.

    Raises:
        FileExistsError: If the folder has the results of another run, or files of another origin.
        BlockingIOError: If another process runs in the folder.
    """
    execution = execution or Execution()
    read_manifest(out)  # raises before the folder is touched
    lock = lock_folder(out)
    earlier = None if execution.overwrite else read_manifest(out)
    before = read_inputs(out, earlier) if earlier else []
    if earlier:
        try:
            manifest, inputs = resume_manifest(earlier, before, manifest, inputs, execution.update)
        except ValueError as error:
            if _has_records(out):
                raise FileExistsError(
                    f"{out} has the shards of another run: {error}; give another --out, or --overwrite to start again"
                ) from None
            earlier = None
    if earlier is None:
        _remove_files(out)
        before = []
    for path in (out / MANIFEST, out / INPUTS, out / IMAGES, out / PREDICTIONS, out / SHARDS / "*"):
        for unfinished in unfinished_files(path):
            unfinished.unlink()
    # The manifest of a new run is written first, which marks the folder. That of an update is written last, because
    # its number of inputs is the number of lines that count.
    if earlier is None:
        write_manifest(out, manifest)
    (out / SHARDS).mkdir(exist_ok=True)
    if inputs != before or earlier is None:
        with atomic_write(out / INPUTS) as file:
            file.writelines(json.dumps(input_).encode() + b"\n" for input_ in inputs)
    if earlier is not None and manifest != earlier:
        write_manifest(out, manifest)
    run = Run(out, manifest, inputs, execution, drawing, lock)
    run.remove_dropped()
    run.collect_suspects()
    return run


def _remove_files(out: Path) -> None:
    for name in FILES:
        path = (out / name).resolve()  # a folder may be a link to another disk
        if path.is_dir():
            shutil.rmtree(path)
            if (out / name).is_symlink():
                path.mkdir()
        else:
            (out / name).unlink(missing_ok=True)


def open_run(out: Path, execution: Execution | None = None, drawing: Drawing | None = None) -> Run:
    """Open a run that another process has started."""
    manifest = read_manifest(out)
    if manifest is None:
        raise FileNotFoundError(f"{out} has no run: give the --out of a run")
    return Run(out, manifest, read_inputs(out, manifest), execution, drawing)


def lock_folder(out: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed or the process ends. Child processes do not inherit the lock."""
    out.mkdir(parents=True, exist_ok=True)
    file = (out / _LOCK).open("wb")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError(f"another run uses {out}: wait until it ends, or give another --out") from None
        print(f"{out} cannot be locked ({error.strerror}): do not start a second run in it", file=sys.stderr)
    return file


def _has_records(out: Path) -> bool:
    """Return whether a folder has records. Visualizations and maps without records are incomplete results."""
    patterns = ("shard-*", interrupted_path(Path("shard-*")).name)
    return any(any((out / SHARDS).glob(pattern)) for pattern in patterns)
