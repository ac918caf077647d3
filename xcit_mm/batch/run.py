"""A run in its folder: its shards and their states, its files, and the lock that admits one run at a time."""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..prediction.tiles import windows
from ..utils.atomic import atomic_write, unfinished_files
from .inputs import Input
from .manifest import ModelInfo, find_difference, input_lines
from .options import RunOptions
from .shards import FORMATS, DamagedShard, Record, interrupted_path, read_records

__all__ = ["Run", "Shard", "lock_folder", "open_run", "start_run"]

MANIFEST, INPUTS, SHARDS, VISUALIZATIONS, LABELS = "run.json", "inputs.jsonl", "shards", "visualizations", "labels"
IMAGES, PREDICTIONS, INSTANCES = "images.json", "predictions.json", "instances"
_LOCK = ".lock"
# The manifest marks the folder as a run's, so it is removed last.
_FILES = (SHARDS, VISUALIZATIONS, LABELS, INSTANCES, IMAGES, PREDICTIONS, INPUTS, MANIFEST)
TILES_PER_SHARD = 64  # of a raster, or one row of tiles if it has more


class Shard(NamedTuple):
    """Inputs that one worker predicts and stores in one file."""

    inputs: range  # indices of the inputs
    tile_rows: range  # of a raster, which is then the only input
    size: int  # number of images and videos, or of tiles


class Run:
    """A run in its folder. The file `lock` keeps other runs out of the folder while it is open."""

    def __init__(self, out: Path, manifest: dict[str, Any], inputs: list[Input], lock: IO[bytes] | None = None) -> None:
        self.out, self.manifest, self.inputs, self.lock = out, manifest, inputs, lock
        self.options = RunOptions(**manifest["options"])
        self.model = ModelInfo(**manifest["model"])
        self.format = FORMATS[self.options.format]
        self.shards = self._split()

    def tiling(self, size: Sequence[int]) -> tuple[int, int]:
        """Return tile and overlap in pixels for a raster of this height and width."""
        tile, overlap = self.options.tile or self.model.image_side or max(size), self.options.overlap
        return tile, tile // 4 if overlap is None else overlap

    def _split(self) -> list[Shard]:
        """Split the inputs. A video is a shard of its own, a raster has one or more."""
        shards: list[Shard] = []
        accepts_images = False  # whether the last shard does
        for number, input_ in enumerate(self.inputs):
            is_image = input_.size is None and not input_.is_video
            if input_.size is not None:
                shards += self._split_raster(number, input_.size)
            elif is_image and accepts_images and shards[-1].size < self.options.shard_size:
                first = shards[-1].inputs.start
                shards[-1] = Shard(range(first, number + 1), range(0), number + 1 - first)
            else:
                shards.append(Shard(range(number, number + 1), range(0), 1))
            accepts_images = is_image
        return shards

    def _split_raster(self, number: int, size: Sequence[int]) -> Iterator[Shard]:
        rows, columns = (len(windows(length, *self.tiling(size))) for length in size)
        step = max(1, TILES_PER_SHARD // columns)
        for first in range(0, rows, step):
            tile_rows = range(first, min(first + step, rows))
            yield Shard(range(number, number + 1), tile_rows, len(tile_rows) * columns)

    def shard_path(self, shard: int) -> Path:
        return self.out / SHARDS / f"shard-{shard:06}{self.format.suffix}"

    def pending(self) -> list[int]:
        """Return the shards without a file."""
        files = {entry.name for entry in os.scandir(self.out / SHARDS)}
        return [shard for shard in range(len(self.shards)) if self.shard_path(shard).name not in files]

    def failed(self) -> list[int]:
        """Return the completed shards that have failed inputs or are damaged."""

        def has_failures(shard: int) -> bool:
            try:
                return any(record.error for record in self.records(shard, brief=True))
            except DamagedShard:
                return True

        pending = set(self.pending())
        return [shard for shard in range(len(self.shards)) if shard not in pending and has_failures(shard)]

    def records(self, shard: int, brief: bool = False) -> Iterator[Record]:
        """Read the records of a shard, in the order of the inputs, as far as it is completed; see `read_records`."""
        path = self.shard_path(shard)
        for file in (path, interrupted_path(path)):
            if file.exists():
                yield from read_records(file, self.format, brief)
                return

    def successful_records(self, shard: int, brief: bool = False) -> dict[int, list[Record]]:
        """Read the records of the inputs that did not fail, by input; none if the shard is damaged."""
        try:
            records = self.records(shard, brief)
            by_input = {number: list(group) for number, group in groupby(records, key=lambda record: record.number)}
        except DamagedShard:
            return {}
        return {number: group for number, group in by_input.items() if not any(record.error for record in group)}


def start_run(out: Path, manifest: dict[str, Any], inputs: list[Input], overwrite: bool = False) -> Run:
    """Start or resume a run in a folder, and lock the folder."""
    out.mkdir(parents=True, exist_ok=True)
    is_first = not (out / _LOCK).exists()
    lock = lock_folder(out)
    try:
        earlier = _read_manifest(out)
    except FileExistsError:
        lock.close()
        if is_first:
            (out / _LOCK).unlink()
        raise
    difference = find_difference(earlier, manifest) if earlier else None
    if difference and not overwrite and _has_records(out):
        raise FileExistsError(
            f"{out} has the shards of another run: {difference}; give another --out, or --overwrite to start again"
        )
    if overwrite or difference:
        for name in _FILES:
            path = out / name
            if path.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        earlier = None
    if earlier is None:  # the manifest is written first, so that an interrupted start can be resumed
        with atomic_write(out / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=2).encode())
    (out / SHARDS).mkdir(exist_ok=True)
    for path in (out / MANIFEST, out / INPUTS, out / IMAGES, out / PREDICTIONS, out / SHARDS / "*"):
        for unfinished in unfinished_files(path):
            unfinished.unlink()
    if not (out / INPUTS).exists():
        with atomic_write(out / INPUTS) as file:
            file.writelines(input_lines(inputs))
    return Run(out, manifest, inputs, lock)


def open_run(out: Path) -> Run:
    """Open a run that another process has started."""
    with (out / INPUTS).open() as lines:
        inputs = [Input(*json.loads(line)) for line in lines]
    return Run(out, json.loads((out / MANIFEST).read_text()), inputs)


def lock_folder(out: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed or the process ends. Child processes do not inherit the lock."""
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
