"""Segmentation maps of rasters: a file of each row of tiles, and the GeoTIFF of all rows."""

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from ..utils.atomic import atomic_path, atomic_write
from ..utils.palettes import Palette, make_palette
from .finished import MADE_FROM
from .gdal import gdal, open_raster
from .raster import Raster

NODATA = np.uint8(255)
"""Value of pixels without a class in a map's file."""
_COMPRESSION = dict(compress="DEFLATE", BIGTIFF="IF_SAFER", SPARSE_OK=True)


def encode_labels(tiles: Mapping[tuple[int, int], np.ndarray]) -> bytes:
    """Return the content of a row's file: an .npz of the classes of tiles.

    Args:
        tiles: Classes (h, w), by the first row and column of a tile in the raster.
    """
    # As .npz, not as GeoTIFF: on a full disk GDAL loses blocks in silence, and Python raises.
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"{row}-{column}": labels for (row, column), labels in tiles.items()}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def join_maps(
    path: Path,
    rows: Sequence[Path],
    raster: Raster,
    made_from: Mapping[str, Any],
    palette: Palette | None,
) -> None:
    """Join the files of rows into a Cloud-Optimized GeoTIFF.

    Its band has the palette as color table. Its tag CLASSES is a JSON list of names, MADE_FROM a
    JSON of `made_from`. Programs take the names of the classes from PATH.aux.xml.

    Raises:
        OSError: If the disk is full.
    """
    from rasterio.shutil import copy

    classes: Sequence[str] = made_from["classes"]
    folder = rows[0].parent
    # All tiles, and overviews twice. GDAL itself says little of a full disk.
    needed = 3 * sum(row.stat().st_size for row in rows)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(f"the disk of {folder} is full: the map needs {needed / 1e6:,.1f} MB")
    colors = {int(NODATA): (0, 0, 0, 0)}
    for number, (blue, green, red) in enumerate(make_palette(len(classes), palette).tolist()):
        colors[number] = (red, green, blue, 255)
    whole = folder / "tiles.tif"
    whole.unlink(missing_ok=True)  # GDAL would read what a full disk has left of it
    with gdal(path), atomic_path(path) as unfinished:
        with open_raster(whole, "w", **_profile(raster)) as file:
            file.write_colormap(1, colors)
            file.update_tags(CLASSES=json.dumps(classes), **{MADE_FROM: json.dumps(made_from)})
            for window, labels in _iter_tiles(rows):
                file.write(labels, 1, window=window)
        copy(whole, unfinished, driver="COG", overview_resampling="NEAREST", **_COMPRESSION)
        with open_raster(unfinished) as file:
            for window, labels in _iter_tiles(rows):
                # On a full disk, GDAL loses blocks in silence.
                if not np.array_equal(file.read(1, window=window), labels):
                    raise OSError(f"{path} is not as it was written: see whether the disk is full")
        names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
        band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
        with atomic_write(path.with_name(f"{path.name}.aux.xml")) as beside:
            beside.write(f"<PAMDataset>{band}</PAMDataset>".encode())


def _profile(raster: Raster) -> dict[str, Any]:
    """Return how the map of a raster is stored, for rasterio."""
    return dict(
        _COMPRESSION,
        driver="GTiff",
        height=raster.height,
        width=raster.width,
        count=1,
        dtype="uint8",
        nodata=int(NODATA),
        crs=raster.crs,
        transform=raster.transform,
        photometric="palette",
        tiled=True,
        blockxsize=512,
        blockysize=512,
    )


def _iter_tiles(rows: Sequence[Path]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the window and the classes of each tile in the files of rows."""
    from rasterio.windows import Window

    for path in rows:
        with np.load(path) as row:
            for corner in row.files:
                labels = row[corner]
                first_row, first_column = map(int, corner.split("-"))
                height, width = labels.shape
                yield Window(first_column, first_row, width, height), labels
