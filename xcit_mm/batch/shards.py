"""Shard files: the records of some inputs, as compressed JSON lines or Parquet. A file exists only when complete."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..utils.atomic import atomic_path


class Record(NamedTuple):
    """Prediction for an image or a video frame, or the reason why the prediction failed."""

    number: int  # index of the input
    path: str
    file_name: str  # relative to the input folder, or as in the COCO json
    image_id: int | float | str | None = None  # in the COCO json
    frame: int | None = None
    height: int | None = None
    width: int | None = None
    boxes: list[list[float]] | None = None  # left, top, right, bottom in pixels, by descending score
    scores: list[float] | None = None
    labels: list[int] | None = None
    masks: list[str] | None = None  # COCO's run-length codes; None for a detector without masks
    cut: list[bool] | None = None  # whether the edge of a tile may have cut each object
    tile: list[int] | None = None  # left, top, right and bottom of a raster's tile, to merge tiles
    sides: list[int] | None = None  # of the tile's objects, at which an edge may have cut them: see `SIDES`
    segmentation_map: bytes | None = None  # PNG; None if the map is a file of its own
    error: str | None = None  # if set, the fields from `height` to `segmentation_map` are None

    @property
    def id(self) -> int | float | str:
        """Id in the JSON files, which depends on nothing but the input: `image_id`, or the line in inputs.jsonl.

        The id of a frame is the line of its video, followed by nine digits of `frame`.
        """
        if self.frame is not None:
            return (self.number + 1) * 10**9 + self.frame
        return self.number + 1 if self.image_id is None else self.image_id


class JsonLines:
    """Writer of compressed JSON lines without null fields. The checksum of gzip detects damage."""

    suffix = ".jsonl.gz"

    def __init__(self, file: IO[bytes]) -> None:
        # Without file name and time, equal records give equal bytes.
        self._lines = gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)

    def write(self, record: Record) -> None:
        values = {name: value for name, value in record._asdict().items() if value is not None}
        self._lines.write(json.dumps(values).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()

    @staticmethod
    def read(path: Path, brief: bool) -> Iterator[Record]:
        if not path.stat().st_size:
            raise EOFError("the file is empty")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield Record(**json.loads(line))


class Parquet:
    """Writer of Parquet, for pandas, DuckDB and similar tools; by pyarrow."""

    suffix = ".parquet"
    _ROW_GROUP = 64  # records in memory

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            dict(
                number=pa.int64(),
                path=pa.string(),
                file_name=pa.string(),
                image_id=pa.int64(),
                frame=pa.int32(),
                height=pa.int32(),
                width=pa.int32(),
                boxes=pa.list_(pa.list_(pa.float32(), 4)),
                scores=pa.list_(pa.float32()),
                labels=pa.list_(pa.int32()),
                masks=pa.list_(pa.string()),
                cut=pa.list_(pa.bool_()),
                segmentation_map=pa.binary(),
                error=pa.string(),
            )
        )
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._values: list[dict[str, Any]] = []

    def write(self, record: Record) -> None:
        values = record._asdict()
        for name, value in values.items():
            if isinstance(value, str):  # a file name may contain bytes that are not UTF-8, as Parquet's strings must be
                values[name] = value.encode(errors="backslashreplace").decode()
        self._values.append(values)
        if len(self._values) == self._ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._values, self._schema))
        self._values = []

    def close(self) -> None:
        if self._values:
            self._flush()
        self._writer.close()

    @staticmethod
    def read(path: Path, brief: bool) -> Iterator[Record]:
        import pyarrow.parquet as pq

        columns = ["number", "path", "file_name", "image_id", "frame", "error"] if brief else None
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(Parquet._ROW_GROUP, columns=columns):
                for values in batch.to_pylist():
                    yield Record(**values)


ShardFormat = JsonLines | Parquet
FORMATS: dict[str, type[ShardFormat]] = dict(coco=JsonLines, parquet=Parquet)


@contextlib.contextmanager
def write_records(path: Path, shard_format: type[ShardFormat]) -> Iterator[ShardFormat]:
    """Open a shard for writing. The file appears when the block ends; Ctrl-C saves it at `interrupted_path(path)`."""
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        writer = shard_format(file)
        try:
            yield writer
        except KeyboardInterrupt:
            writer.close()
            unfinished.replace(interrupted_path(path))
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # the block's error is reported, not that of a full disk
                writer.close()
            raise
        writer.close()
    interrupted_path(path).unlink(missing_ok=True)


def interrupted_path(path: Path) -> Path:
    """Return the path where Ctrl-C saves the first records of a shard, which stays pending."""
    return path.with_name(f".interrupted-{path.name}")


class DamagedShard(ValueError):
    """Error of a shard whose file, at `path`, cannot be read completely."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} is damaged: {error}")
        self.path = path


def read_records(path: Path, shard_format: type[ShardFormat], brief: bool = False) -> Iterator[Record]:
    """Read the records of a shard. If `brief`, only the fields that identify the input, and `error`, are certain."""
    try:
        yield from shard_format.read(path, brief)
    except (EOFError, ValueError, TypeError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:  # an error of the system; those of gzip and pyarrow have no errno
            raise
        raise DamagedShard(path, error) from None
