"""Parts of a large run as files: rows of plain values, one file a part, there when whole and not before."""

import contextlib
import gzip
import importlib.util
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from ..utils.atomic import atomic_path

__all__ = [
    "FORMATS",
    "DamagedPart",
    "PartFormat",
    "Row",
    "Writer",
    "check_format",
    "interrupted",
    "part_file",
    "read_rows",
]


class Row(NamedTuple):
    """What was found in an image or a frame of a video, or why nothing was.

    Attributes:
        number: Of the input, from 0 on.
        path: Of the input.
        file_name: What its data set, or the folder it was found in, calls it.
        image_id: That of a COCO json.
        frame: Of a video, from 0 on.
        height: In pixels.
        width: In pixels.
        boxes: Left, top, right and bottom in pixels, best first.
        scores: Of the boxes.
        labels: Class numbers of the boxes, from 0 on.
        masks: COCO's run-length codes of the boxes, as text; None of a detector without masks.
        ends: Of the boxes of a scene's tile, whether the tile's edge may have cut the object; for merging the tiles.
        segmentation_map: PNG with the class of each pixel; None if it has a file of its own.
        error: Why it could not be predicted; then nothing of the above but where it is.
    """

    number: int
    path: str
    file_name: str
    image_id: int | float | str | None = None
    frame: int | None = None
    height: int | None = None
    width: int | None = None
    boxes: list[list[float]] | None = None
    scores: list[float] | None = None
    labels: list[int] | None = None
    masks: list[str] | None = None
    ends: list[bool] | None = None
    segmentation_map: bytes | None = None
    error: str | None = None


_BRIEF = ["number", "path", "file_name", "image_id", "frame", "error"]


class Writer(Protocol):
    """Writes rows to a file; what is held back comes with `close`, which leaves the file open."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class PartFormat(Protocol):
    """How a part is stored."""

    suffix: str

    def write_to(self, file: IO[bytes]) -> Writer: ...

    def read(self, path: Path, brief: bool) -> Iterator[Row]: ...


class _JsonLines:
    """Compressed lines of JSON: written without anything to install, and with a checksum."""

    suffix = ".jsonl.gz"

    def write_to(self, file: IO[bytes]) -> Writer:
        return _JsonWriter(file)

    def read(self, path: Path, brief: bool) -> Iterator[Row]:
        if not path.stat().st_size:
            raise EOFError("it is empty")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield Row(**json.loads(line))


class _JsonWriter:
    def __init__(self, file: IO[bytes]) -> None:
        # Neither name nor time stand in the file: the same rows give the same bytes.
        self._lines = gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)

    def write(self, row: Row) -> None:
        values = {name: value for name, value in row._asdict().items() if value is not None}
        self._lines.write(json.dumps(values).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()


class _Parquet:
    """Columns, for pandas, DuckDB and the like; by pyarrow."""

    suffix = ".parquet"

    def write_to(self, file: IO[bytes]) -> Writer:
        return _ParquetWriter(file)

    def read(self, path: Path, brief: bool) -> Iterator[Row]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ParquetWriter.ROWS, columns=_BRIEF if brief else None):
                for values in batch.to_pylist():
                    yield Row(**values)


class _ParquetWriter:
    ROWS = 64  # of a group, which is what is held in memory

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(file, _parquet_schema(), compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, row: Row) -> None:
        # A file's name may be no text in UTF-8, which Parquet's strings are.
        values = row._asdict().items()
        self._rows.append({name: _as_utf8(value) if isinstance(value, str) else value for name, value in values})
        if len(self._rows) == self.ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._rows, _parquet_schema()))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


def _as_utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _parquet_schema() -> Any:
    import pyarrow as pa

    return pa.schema(
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
            segmentation_map=pa.binary(),
            error=pa.string(),
        )
    )


FORMATS: dict[str, PartFormat] = dict(coco=_JsonLines(), parquet=_Parquet())


def check_format(name: str) -> None:
    """Raise ModuleNotFoundError if what a format needs is not installed."""
    if name == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError("--format parquet needs pyarrow: pip install xcit_mm[parquet]")


@contextlib.contextmanager
def part_file(path: Path, part_format: PartFormat) -> Iterator[Writer]:
    """Takes the rows of a part, whose file is there when all are; after Ctrl-C what was done is at `interrupted(path)`.

    Raises:
        OSError: If it cannot be written, such as on a full disk.
    """
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        writer = part_format.write_to(file)
        try:
            yield writer
        except KeyboardInterrupt:
            writer.close()
            unfinished.replace(interrupted(path))
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # of a full disk, reported already
                writer.close()
            raise
        writer.close()
    interrupted(path).unlink(missing_ok=True)


def interrupted(path: Path) -> Path:
    """Where Ctrl-C keeps what was done of a part. It is read, but the part counts as not done."""
    return path.with_name(f".interrupted-{path.name}")


class DamagedPart(ValueError):
    """A part's file that cannot be read to its end; `path` is the file's."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} is damaged: {error}")
        self.path = path


def read_rows(path: Path, part_format: PartFormat, brief: bool = False) -> Iterator[Row]:
    """Rows of a part; of a brief reading only where each is from and its error are sure to be there.

    Raises:
        DamagedPart: If the file is not whole.
        OSError: If it cannot be read.
    """
    try:
        yield from part_format.read(path, brief)
    except (EOFError, ValueError, TypeError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the system's; those of gzip and pyarrow have none
            raise
        raise DamagedPart(path, error) from None
