"""Write and join segmentation maps as GeoTIFF, in the memory of a few rows."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from ..utils.atomic import atomic_path, atomic_write
from ..utils.palettes import Palette, make_palette
from .gdal import gdal, open_raster
from .raster import Georeference

_BLOCK = 512
_FIRST_ROW, _CLASSES = "FIRST_ROW", "CLASSES"  # tags


def no_class(classes: Sequence[str]) -> int:
    """Return the value of pixels without a class in a map's file: 255, or 65535 with more than 255 classes."""
    if len(classes) > 65535:
        raise ValueError(f"{len(classes)} classes: a segmentation map's file has room for 65535")
    return 255 if len(classes) <= 255 else 65535


class DamagedRows(ValueError):
    """Error of a file of rows, at `path`, that is missing, damaged or of another map."""

    def __init__(self, path: Path, problem: object) -> None:
        super().__init__(str(problem))
        self.path = path


class MapWriter:
    """Writes a segmentation map from the top to the bottom. It holds at most 512 rows in addition to its input."""

    def __init__(self, file: Any, classes: Sequence[str]) -> None:
        self._file = file
        self._count, self._no_class = len(classes), no_class(classes)
        self.height, self.width = file.height, file.width
        self.written = 0
        # A compressed block that is written twice takes its space twice, so only whole blocks are written.
        self._buffer = np.empty((_BLOCK, self.width), file.dtypes[0])

    def write(self, labels: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Write the next rows of classes (h, width), except where `valid` (h, width) is False."""
        rows = labels.shape[0]
        if labels.shape != (rows, self.width) or (valid is not None and valid.shape != labels.shape):
            masked = "" if valid is None else f" with a mask of {valid.shape}"
            raise ValueError(f"rows of {labels.shape}{masked}, for a map that is {self.width} wide")
        if self.written + rows > self.height:
            raise ValueError(f"{self.written + rows} rows for a map that is {self.height} high")
        present = labels if valid is None else labels[valid]
        if present.size and not 0 <= present.min() <= present.max() < self._count:
            raise ValueError(f"labels from {present.min()} to {present.max()}, for {self._count} classes")
        values = labels if valid is None else np.where(valid, labels, self._no_class)
        while len(values):
            buffered = self.written % _BLOCK
            count = min(len(values), _BLOCK - buffered)
            self._buffer[buffered : buffered + count] = values[:count]
            self.written, values = self.written + count, values[count:]
            if self.written % _BLOCK == 0 or self.written == self.height:
                start = self.written - buffered - count
                window = ((start, self.written), (0, self.width))
                self._file.write(self._buffer[: buffered + count], 1, window=window)


@contextlib.contextmanager
def open_map(
    path: Path,
    georeference: Georeference,
    classes: Sequence[str],
    palette: Palette | None = None,
    rows: tuple[int, int] | None = None,
) -> Iterator[MapWriter]:
    """Open a segmentation map, or some of its rows, for writing. The file appears when all rows are written.

    The file is a GeoTIFF in tiles of 512 pixels, with lossless compression and one band of class numbers. `no_class` is
    its nodata value, the palette its color table, and the tag CLASSES a JSON list of the class names.

    Args:
        georeference: Size and place of the whole map.
        palette: Colors in RGB. Default: distinct colors.
        rows: First row, and row after the last, of a part of the map. Default: all.

    Raises:
        ValueError: If fewer rows were written.
        OSError: If the file cannot be written, for example on a full disk; a former file stays.
    """
    first, stop = rows or (0, georeference.height)
    a, b, c, d, e, f = georeference.transform[:6]
    nodata = no_class(classes)
    profile = dict(
        driver="GTiff",
        height=stop - first,
        width=georeference.width,
        count=1,
        dtype="uint8" if nodata == 255 else "uint16",
        crs=georeference.crs,
        transform=type(georeference.transform)(a, b, c + b * first, d, e, f + e * first),
        nodata=nodata,
        tiled=True,
        blockxsize=_BLOCK,
        blockysize=_BLOCK,
        compress="deflate",  # without a predictor: differences of class numbers compress worse
        photometric="palette",
        BIGTIFF="IF_SAFER",
    )
    with atomic_path(path) as unfinished, gdal(path, "written"):
        with open_raster(unfinished, "w", **profile) as file:
            colors = enumerate(make_palette(len(classes), palette)[:, ::-1].tolist())
            file.write_colormap(1, {number: (*color, 255) for number, color in colors} | {nodata: (0, 0, 0, 0)})
            file.update_tags(**{_CLASSES: json.dumps(list(classes)), _FIRST_ROW: str(first)})
            writer = MapWriter(file, classes)
            yield writer
            if writer.written < writer.height:
                raise ValueError(f"{path}: {writer.written} of its {writer.height} rows were written")
        # GDAL may hide an error of its last write, so the last block is read.
        with open_raster(unfinished) as written:
            written.read(1, window=((written.height - 1, written.height), (written.width - 1, written.width)))


def join_maps(
    path: Path,
    shards: Iterable[Path],
    georeference: Georeference,
    classes: Sequence[str],
    palette: Palette | None = None,
) -> None:
    """Join the files of consecutive rows of a map into one file, 512 rows at a time; see `open_map`.

    The file is a Cloud-Optimized GeoTIFF with overviews. Its .aux.xml names the classes for GDAL and QGIS.

    Raises:
        DamagedRows: If a file of rows cannot be read, or does not continue the map.
    """
    from rasterio.shutil import copy

    names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
    band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
    with atomic_path(path) as optimized:
        with open_map(path, georeference, classes, palette) as writer:
            for shard in shards:
                for labels in _iter_rows(shard, writer, classes):
                    writer.write(labels, labels != no_class(classes))
        with gdal(path, "written"):
            copy(path, optimized, driver="COG", compress="DEFLATE", overview_resampling="NEAREST", bigtiff="IF_SAFER")
    with atomic_write(path.with_name(f"{path.name}.aux.xml")) as file:
        file.write(f"<PAMDataset>{band}</PAMDataset>".encode())


def _iter_rows(shard: Path, writer: MapWriter, classes: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the rows of a file, 512 at a time, if they are the next rows of the map."""
    with _reading(shard):
        file = open_raster(shard)
    with file:
        tags = file.tags()
        if tags.get(_FIRST_ROW) != str(writer.written):
            problem = f"begins with row {tags.get(_FIRST_ROW)}, but row {writer.written} comes next"
            raise DamagedRows(shard, f"{shard} {problem}")
        if file.width != writer.width or tags.get(_CLASSES) != json.dumps(list(classes)):
            problem = f"is {file.width} wide and has the classes {tags.get(_CLASSES)}: of another raster"
            raise DamagedRows(shard, f"{shard} {problem}")
        for start in range(0, file.height, _BLOCK):
            with _reading(shard):
                rows = file.read(1, window=((start, min(start + _BLOCK, file.height)), (0, file.width)))
            yield rows


@contextlib.contextmanager
def _reading(shard: Path) -> Iterator[None]:
    try:
        with gdal(shard):
            yield
    except OSError as error:
        raise DamagedRows(shard, error) from None
