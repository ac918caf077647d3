"""Segmentation maps of rasters: a file of each row of tiles, and the GeoTIFF of all rows."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from ..utils.palettes import Palette, make_palette
from .files import MADE_FROM, UNFINISHED, rows_folder, write_bytes, written_file
from .gdal import gdal, open_raster
from .raster import Raster


def no_class(classes: Sequence[str]) -> np.uint8 | np.uint16:
    """Return the value of pixels without a class in a map's file: 255, or 65535 with more than 255
    classes.
    """
    return np.uint8(255) if len(classes) <= 255 else np.uint16(65535)


def encode_labels(tiles: Mapping[tuple[int, int], np.ndarray]) -> bytes:
    """Return the content of a row's file: an .npz of the classes (h, w) of tiles, by the first row
    and column of each in the raster.
    """
    # As .npz, not as GeoTIFF: on a full disk GDAL loses blocks in silence, and Python raises.
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"{row}-{column}": labels for (row, column), labels in tiles.items()}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def description_path(path: Path) -> Path:
    """Return the path of the file that names the classes of a map for GDAL and QGIS."""
    return path.with_name(f"{path.name}.aux.xml")


def is_map(path: Path) -> bool:
    """Return whether `join_maps` wrote a file."""
    with gdal(path), open_raster(path) as file:
        return MADE_FROM in file.tags()


def join_maps(
    path: Path,
    rows: Sequence[Path],
    raster: Raster,
    palette: Palette | None,
    made_from: Mapping[str, Any],
) -> None:
    """Join the files of rows into a Cloud-Optimized GeoTIFF.

    Its band has the palette as color table. Its tag CLASSES is a JSON list of names, MADE_FROM a
    JSON of `made_from`. Its .aux.xml names the classes for GDAL and QGIS.

    Raises:
        OSError: If the disk is full.
    """
    from rasterio.shutil import copy

    classes: Sequence[str] = made_from["classes"]
    names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
    band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
    folder = rows_folder(path)
    write_bytes(description_path(path), folder, f"<PAMDataset>{band}</PAMDataset>".encode())
    colors = {int(no_class(classes)): (0, 0, 0, 0)}
    for number, (blue, green, red) in enumerate(make_palette(len(classes), palette).tolist()):
        colors[number] = (red, green, blue, 255)
    whole = folder / f"{UNFINISHED}tiles"
    try:
        with gdal(path), written_file(path, folder) as unfinished:
            with open_raster(whole, "w", **_profile(raster, no_class(classes))) as file:
                file.write_colormap(1, colors)
                tags = {"CLASSES": json.dumps(classes), MADE_FROM: json.dumps(made_from)}
                file.update_tags(**tags)
                for window, labels in _iter_tiles(rows):
                    file.write(labels, 1, window=window)
            options = dict(compress="DEFLATE", overview_resampling="NEAREST", bigtiff="IF_SAFER")
            copy(whole, unfinished, driver="COG", sparse_ok="YES", **options)
            _check_written(unfinished, rows)  # on a full disk, GDAL loses blocks in silence
    finally:
        whole.unlink(missing_ok=True)


def _profile(raster: Raster, nodata: np.uint8 | np.uint16) -> dict[str, Any]:
    """Return the profile of a GeoTIFF on a raster's pixels, which have no class at first."""
    return dict(
        driver="GTiff",
        height=raster.height,
        width=raster.width,
        count=1,
        dtype=nodata.dtype.name,
        nodata=int(nodata),
        crs=raster.crs,
        transform=raster.transform,
        photometric="palette",
        tiled=True,
        blockxsize=512,
        blockysize=512,
        compress="deflate",
        SPARSE_OK=True,
        BIGTIFF="IF_SAFER",
    )


def _iter_tiles(rows: Sequence[Path]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield window and classes of each tile in the files of rows."""
    from rasterio.windows import Window

    for path in rows:
        with np.load(path) as row:
            for corner in row.files:
                labels = row[corner]
                first_row, first_column = map(int, corner.split("-"))
                height, width = labels.shape
                yield Window(first_column, first_row, width, height), labels


def _check_written(path: Path, rows: Sequence[Path]) -> None:
    """Raise OSError if a map differs from its rows, or an overview cannot be read."""
    with open_raster(path) as file:
        for window, labels in _iter_tiles(rows):
            if not np.array_equal(file.read(1, window=window), labels):
                raise OSError("other classes were read back")
        levels = len(file.overviews(1))
    for level in range(levels):
        with open_raster(path, overview_level=level) as overview:
            for _, window in overview.block_windows(1):
                overview.read(1, window=window)
