"""A run in its folder: its shards and their states, its files, and the lock that admits one run at a time."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..prediction.tiles import windows
from ..utils.atomic import atomic_write, unfinished_files
from .inputs import Input
from .manifest import ModelInfo, find_difference, merge_inputs
from .options import Drawing, Execution, RunOptions
from .shards import FORMATS, DamagedShard, Record, interrupted_path, read_records, write_records

__all__ = ["Run", "Shard", "lock_folder", "open_run", "start_run"]

MANIFEST, INPUTS, SHARDS, VISUALIZATIONS, LABELS = "run.json", "inputs.jsonl", "shards", "visualizations", "labels"
IMAGES, PREDICTIONS, INSTANCES = "images.json", "predictions.json", "instances"
SUSPECTS = ".suspects.json"
_LOCK = ".lock"
# The manifest marks the folder as a run's, so it is removed last.
_FILES = (SHARDS, VISUALIZATIONS, LABELS, INSTANCES, IMAGES, PREDICTIONS, SUSPECTS, INPUTS, MANIFEST)
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
            predicted it alone has died.
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
        self.read_suspects()

    def tiling(self, size: Sequence[int]) -> tuple[int, int]:
        """Return tile and overlap in pixels for a raster of this height and width."""
        tile, overlap = self.options.tile or self.model.image_side or max(size), self.options.overlap
        return tile, tile // 4 if overlap is None else overlap

    def _split(self) -> list[Shard]:
        """Split the inputs. A video is a shard of its own, a raster has one or more."""
        shards: list[Shard] = []
        accepts_images = False  # whether the last shard does
        starts = set(self.manifest["inputs"]["starts"])
        for number, input_ in enumerate(self.inputs):
            is_image, size = input_.size is None and not input_.is_video, int(number not in self.dropped)
            accepts_images &= number not in starts
            if input_.size is not None:
                shards += [shard._replace(size=size * shard.size) for shard in self._split_raster(number, input_.size)]
            elif is_image and accepts_images and len(shards[-1].inputs) < self.options.shard_size:
                first, size = shards[-1].inputs.start, size + shards[-1].size
                shards[-1] = Shard(range(first, number + 1), range(0), size)
            else:
                shards.append(Shard(range(number, number + 1), range(0), size))
            accepts_images = is_image
        return shards

    def numbers(self, shard: int) -> list[int]:
        """Return the numbers of a shard's inputs, without those that an update dropped."""
        return [number for number in self.shards[shard].inputs if number not in self.dropped]

    def _split_raster(self, number: int, size: Sequence[int]) -> Iterator[Shard]:
        rows, columns = (len(windows(length, *self.tiling(size))) for length in size)
        step = max(1, TILES_PER_SHARD // columns)
        for first in range(0, rows, step):
            tile_rows = range(first, min(first + step, rows))
            yield Shard(range(number, number + 1), tile_rows, len(tile_rows) * columns)

    def shard_path(self, shard: int) -> Path:
        return self.out / SHARDS / f"shard-{shard:06}{self.format.suffix}"

    def to_predict(self) -> list[int]:
        """Return the shards to predict: those that are pending, or with `retry_failed` those with failures."""
        return self.failed() if self.execution.retry_failed else self.pending()

    def size(self, shards: Iterable[int]) -> int:
        """Return the number of inputs or tiles to predict in some shards."""
        retry = self.execution.retry_failed
        completed = sum(len(self.successful_records(shard, brief=True)) for shard in shards) if retry else 0
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

    def read_suspects(self) -> None:
        path = self.out / SUSPECTS
        suspects = json.loads(path.read_text()) if path.exists() else []
        self.suspects = {(shard, number): deaths for shard, number, deaths in suspects}

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

        return [shard for shard in self.completed() if has_failures(shard)]

    def records(self, shard: int, brief: bool = False) -> Iterator[Record]:
        """Read the records of a shard, in the order of the inputs, as far as it is completed; see `read_records`."""
        path = self.shard_path(shard)
        for file in (path, interrupted_path(path)):
            if file.exists():
                yield from read_records(file, self.format, brief)
                return

    def records_by_input(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        """Read the records of a shard, by input; none if the shard is damaged."""
        try:
            records = self.records(shard, brief)
            return {number: list(group) for number, group in groupby(records, key=lambda record: record.number)}
        except DamagedShard:
            return {}

    def successful_records(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        """Read the records of the inputs that did not fail, by input; none if the shard is damaged."""
        by_input = self.records_by_input(shard, brief)
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
    overwrite = execution.overwrite
    _read_manifest(out)  # raises before the folder is touched
    lock = lock_folder(out)
    earlier = _read_manifest(out)
    before = _read_inputs(out, earlier) if earlier else []
    difference = find_difference(earlier, manifest) if earlier else None
    if earlier and not overwrite and not difference and before:
        try:
            section, inputs = merge_inputs(earlier["inputs"], before, manifest["inputs"], inputs, execution.update)
            manifest = manifest | dict(inputs=section)
        except FileExistsError as error:
            difference = str(error)
    if difference and not overwrite and _has_records(out):
        raise FileExistsError(
            f"{out} has the shards of another run: {difference}; give another --out, or --overwrite to start again"
        )
    if overwrite or difference:
        for name in _FILES:
            path = (out / name).resolve()  # a folder may be a link to another disk
            if path.is_dir():
                shutil.rmtree(path)
                if (out / name).is_symlink():
                    path.mkdir()
            else:
                (out / name).unlink(missing_ok=True)
        earlier, before = None, []
    for path in (out / MANIFEST, out / INPUTS, out / IMAGES, out / PREDICTIONS, out / SHARDS / "*"):
        for unfinished in unfinished_files(path):
            unfinished.unlink()
    # The manifest of a new run is written first, which marks the folder. That of an update is written last, because
    # its number of inputs is the number of lines that count.
    if earlier is None:
        _write_manifest(out, manifest)
    (out / SHARDS).mkdir(exist_ok=True)
    if inputs != before:
        with atomic_write(out / INPUTS) as file:
            file.writelines(json.dumps(input_).encode() + b"\n" for input_ in inputs)
    if earlier is not None and manifest != earlier:
        _write_manifest(out, manifest)
    run = Run(out, manifest, inputs, execution, drawing, lock)
    run.remove_dropped()
    run.collect_suspects()
    return run


def _write_manifest(out: Path, manifest: dict[str, Any]) -> None:
    with atomic_write(out / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=2).encode())


def open_run(out: Path, execution: Execution | None = None, drawing: Drawing | None = None) -> Run:
    """Open a run that another process has started."""
    manifest = json.loads((out / MANIFEST).read_text())
    return Run(out, manifest, _read_inputs(out, manifest), execution, drawing)


def _read_inputs(out: Path, manifest: dict[str, Any]) -> list[Input]:
    """Read the inputs of a run, if they have been written."""
    if not (out / INPUTS).exists():
        return []
    with (out / INPUTS).open() as lines:
        return [Input(*json.loads(line)) for line in islice(lines, manifest["inputs"]["count"])]


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


def _read_manifest(out: Path) -> dict[str, Any] | None:
    """Read the manifest of an earlier run, or return None if the folder has no files of a run."""
    files = [out / name for name in _FILES if (out / name).exists()]
    if not files:
        return None
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise FileExistsError(
            f"{files[0]} does not belong to a run, which has a {MANIFEST}: give another --out"
        ) from None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= {"config", "checkpoint", "options", "inputs"}:
        raise FileExistsError(f"{out / MANIFEST} is not the manifest of a run: give another --out")
    return manifest


def _has_records(out: Path) -> bool:
    """Return whether a folder has records. Visualizations and maps without records are incomplete results."""
    patterns = ("shard-*", interrupted_path(Path("shard-*")).name)
    return any(any((out / SHARDS).glob(pattern)) for pattern in patterns)
