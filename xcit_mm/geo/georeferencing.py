"""Segmentation maps with their place on a map, as GeoTIFF, written and joined in memory of a few rows."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..prediction.drawing import Palette, colours
from ..utils.atomic import atomic_path
from .gdal import gdal, opened
from .raster import Raster

__all__ = ["MapWriter", "Scene", "assemble_maps", "map_file", "no_class"]

_BLOCK = 512
_FIRST_ROW, _CLASSES = "FIRST_ROW", "CLASSES"


class Scene(NamedTuple):
    """Size and place of an image.

    Attributes:
        height: In pixels.
        width: In pixels.
        crs: Of rasterio, or None.
        transform: From pixels (column, row) to coordinates, an affine.Affine.
    """

    height: int
    width: int
    crs: Any
    transform: Any

    @classmethod
    def of(cls, raster: Raster) -> "Scene":
        return cls(raster.height, raster.width, raster.crs, raster.transform)


def no_class(classes: Sequence[str]) -> int:
    """The value of pixels without a class in a segmentation map's file: 255, of more than 255 classes 65535.

    Raises:
        ValueError: If there are too many classes.
    """
    if len(classes) > 65535:
        raise ValueError(f"{len(classes)} classes: a segmentation map's file has room for 65535")
    return 255 if len(classes) <= 255 else 65535


class MapWriter:
    """Takes a segmentation map from the top to the bottom; holds at most 512 rows and those that it is given."""

    def __init__(self, file: Any, path: Path, classes: Sequence[str]) -> None:
        self._file, self._path = file, path
        self._count, self._no_class = len(classes), no_class(classes)
        self.height, self.width = file.height, file.width
        self.written = 0
        # A compressed block that is written twice takes its room twice: only whole ones are.
        self._waiting = np.empty((_BLOCK, self.width), file.dtypes[0])
        self._held = 0

    def write(self, labels: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Write the next rows.

        Args:
            labels: Classes (h, width), from 0 on.
            valid: (h, width), bool: where there is an image; default: everywhere.

        Raises:
            ValueError: If they are too many, of another width or not of these classes.
            OSError: If they cannot be written.
        """
        rows = labels.shape[0]
        if labels.shape != (rows, self.width) or (valid is not None and valid.shape != labels.shape):
            masked = "" if valid is None else f" with a mask of {valid.shape}"
            raise ValueError(f"rows of {labels.shape}{masked}, for a map that is {self.width} wide")
        if self.written + rows > self.height:
            raise ValueError(f"{self.written + rows} rows for a map that is {self.height} high")
        seen = labels if valid is None else labels[valid]
        if seen.size and not 0 <= seen.min() <= seen.max() < self._count:
            raise ValueError(f"labels from {seen.min()} to {seen.max()}, for {self._count} classes")
        self._put(labels if valid is None else np.where(valid, labels, self._no_class))

    def _put(self, rows: np.ndarray) -> None:
        while len(rows):
            taken = min(len(rows), _BLOCK - self._held, self.height - self.written)
            self._waiting[self._held : self._held + taken] = rows[:taken]
            self._held, self.written, rows = self._held + taken, self.written + taken, rows[taken:]
            if self._held == _BLOCK or self.written == self.height:
                window = ((self.written - self._held, self.written), (0, self.width))
                with gdal(self._path, "written"):
                    self._file.write(self._waiting[: self._held], 1, window=window)
                self._held = 0


@contextlib.contextmanager
def map_file(
    path: Path,
    scene: Scene,
    classes: Sequence[str],
    palette: Palette | None = None,
    rows: tuple[int, int] | None = None,
) -> Iterator[MapWriter]:
    """A segmentation map's file, or that of some rows, which is there when all of them are written.

    A GeoTIFF in tiles of 512 pixels, compressed without loss, of one band with the classes' numbers, `no_class` as
    nodata, the palette as colour table and the names of the classes, a JSON list, in the tag CLASSES.

    Args:
        path: Of the file.
        scene: Size and place of the whole image.
        classes: Their names.
        palette: Colours in RGB; default: ones far apart.
        rows: From which row to which, of a part; default: all.

    Raises:
        ValueError: If fewer rows were written.
        OSError: If it cannot be written, such as on a full disk; then what was there still is.
        ModuleNotFoundError: If rasterio is not installed.
    """
    first, stop = rows or (0, scene.height)
    profile = dict(
        driver="GTiff",
        height=stop - first,
        width=scene.width,
        count=1,
        dtype="uint8" if no_class(classes) == 255 else "uint16",
        crs=scene.crs,
        transform=_moved(scene.transform, first),
        nodata=no_class(classes),
        tiled=True,
        blockxsize=_BLOCK,
        blockysize=_BLOCK,
        compress="deflate",  # without a predictor: neighbours are equal or unlike, and their differences cost more
        photometric="palette",
        BIGTIFF="IF_SAFER",
    )
    with atomic_path(path) as unfinished:
        with gdal(path, "written"):
            file = opened(unfinished, "w", **profile)
            file.write_colormap(1, _colour_table(classes, palette))
            file.update_tags(**{_CLASSES: json.dumps(list(classes)), _FIRST_ROW: str(first)})
        with _closed(file, path):
            writer = MapWriter(file, path, classes)
            yield writer
            if writer.written < writer.height:
                raise ValueError(f"{path}: {writer.written} of its {writer.height} rows were written")
        _check_end(unfinished, path)


def _moved(transform: Any, first_row: int) -> Any:
    """The transform of the rows from one on."""
    a, b, c, d, e, f = transform[:6]
    return type(transform)(a, b, c + b * first_row, d, e, f + e * first_row)


def _colour_table(classes: Sequence[str], palette: Palette | None) -> dict[int, tuple[int, ...]]:
    rgb = colours(len(classes), palette)[:, ::-1].tolist()
    return {number: (*colour, 255) for number, colour in enumerate(rgb)} | {no_class(classes): (0, 0, 0, 0)}


@contextlib.contextmanager
def _closed(file: Any, path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # of a full disk, told already
            file.close()
        raise
    with gdal(path, "written"):
        file.close()


def _check_end(unfinished: Path, path: Path) -> None:
    """Raise OSError if the last block cannot be read: what goes wrong at the end GDAL may keep to itself."""
    with gdal(path, "written"), opened(unfinished) as file:
        file.read(1, window=((file.height - 1, file.height), (file.width - 1, file.width)))


def assemble_maps(
    path: Path, parts: Iterable[Path], scene: Scene, classes: Sequence[str], palette: Palette | None = None
) -> None:
    """Join the files of a scene's rows, from the top to the bottom, into one, 512 rows at a time; see `map_file`.

    Raises:
        ValueError: If rows are missing between them or at the end, or a part is of another scene or other classes.
        OSError: If one cannot be read, or the file not be written.
    """
    with map_file(path, scene, classes, palette) as writer:
        for part in parts:
            for labels in _rows_of(part, writer, classes):
                writer.write(labels, labels != no_class(classes))


def _rows_of(part: Path, writer: MapWriter, classes: Sequence[str]) -> Iterator[np.ndarray]:
    """The rows of a part that come next, 512 at a time."""
    with gdal(part):
        file = opened(part)
    with file:
        tags = file.tags()
        if tags.get(_FIRST_ROW) != str(writer.written):
            raise ValueError(f"{part} begins with row {tags.get(_FIRST_ROW)}, but row {writer.written} comes next")
        if file.width != writer.width or tags.get(_CLASSES) != json.dumps(list(classes)):
            raise ValueError(f"{part} is {file.width} wide and has the classes {tags.get(_CLASSES)}: of another scene")
        for start in range(0, file.height, _BLOCK):
            with gdal(part):
                rows = file.read(1, window=((start, min(start + _BLOCK, file.height)), (0, file.width)))
            yield rows
