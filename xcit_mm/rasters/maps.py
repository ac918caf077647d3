"""Segmentation maps of rasters: a file of each row of windows, and the GeoTIFF of all rows."""

import json
import zlib
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

NODATA = 255
"""Value of pixels without a class in a map's file."""
_COMPRESSION = dict(compress="DEFLATE", BIGTIFF="IF_SAFER", SPARSE_OK=True)


def encode_labels(top: int, labels: np.ndarray) -> bytes:
    """Return the content of a row's file.

    Args:
        top: The first row of the raster.
        labels: The classes of its rows from there on, (h, width), uint8.
    """
    # Not as a GeoTIFF: on a full disk GDAL loses blocks in silence, and Python raises.
    return zlib.compress(top.to_bytes(8, "little") + labels.tobytes())


def write_map(
    path: Path,
    rows: Sequence[Path],
    raster: Raster,
    classes: Sequence[str],
    palette: Palette | None,
    made_from: Mapping[str, Any],
) -> None:
    """Write the classes in the files of rows as a Cloud-Optimized GeoTIFF.

    Its band has the palette as colour table. Its tag CLASSES is a JSON list of names, MADE_FROM a
    JSON of `made_from`. Programs take the names of the classes from PATH.aux.xml.

    Raises:
        OSError: If the disk is full.
    """
    from rasterio.shutil import copy

    colors = {NODATA: (0, 0, 0, 0)}
    for number, (blue, green, red) in enumerate(make_palette(len(classes), palette).tolist()):
        colors[number] = (red, green, blue, 255)
    profile = dict(
        _COMPRESSION,
        driver="GTiff",
        height=raster.height,
        width=raster.width,
        count=1,
        dtype="uint8",
        nodata=NODATA,
        crs=raster.crs,
        transform=raster.transform,
        photometric="palette",
    )
    joined = rows[0].with_name("joined.tif")
    joined.unlink(missing_ok=True)  # GDAL would read what a full disk has left of it
    with gdal(path), atomic_path(path) as unfinished:
        with open_raster(joined, "w", **profile) as file:
            file.write_colormap(1, colors)
            file.update_tags(CLASSES=json.dumps(classes), **{MADE_FROM: json.dumps(made_from)})
            for window, labels in _read_rows(rows, raster.width):
                file.write(labels, 1, window=window)
        copy(joined, unfinished, driver="COG", overview_resampling="NEAREST", **_COMPRESSION)
        with open_raster(unfinished) as file:
            for window, labels in _read_rows(rows, raster.width):
                # On a full disk, GDAL loses blocks in silence.
                if not np.array_equal(file.read(1, window=window), labels):
                    raise OSError(f"{path} differs from what was written: see if the disk is full")
        names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
        band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
        with atomic_write(path.with_name(f"{path.name}.aux.xml")) as beside:
            beside.write(f"<PAMDataset>{band}</PAMDataset>".encode())


def _read_rows(rows: Sequence[Path], width: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the window and the classes of the file of each row."""
    from rasterio.windows import Window

    for path in rows:
        content = zlib.decompress(path.read_bytes())
        top = int.from_bytes(content[:8], "little")
        labels = np.frombuffer(content, np.uint8, offset=8).reshape(-1, width)
        yield Window(0, top, width, len(labels)), labels
