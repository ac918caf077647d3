"""Segmentation maps of rasters: rows of tiles, each in a file of its own, and the Cloud-Optimized
GeoTIFF of all.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ..utils.atomic import atomic_path, atomic_write
from ..utils.palettes import Palette, make_palette
from .gdal import gdal, open_raster
from .raster import Raster


def no_class(classes: Sequence[str]) -> int:
    """Return the value of pixels without a class in a map's file: 255, or 65535 with more than 255
    classes.
    """
    return 255 if len(classes) <= 255 else 65535


def create_map(path: Path, height: int, width: int, classes: Sequence[str], **profile: Any) -> Any:
    """Open a GeoTIFF of class numbers for writing, in tiles of 512 pixels. Unwritten pixels have no
    class.
    """
    nodata = no_class(classes)
    kind = dict(
        driver="GTiff",
        count=1,
        dtype="uint8" if nodata == 255 else "uint16",
        nodata=nodata,
        SPARSE_OK=True,
    )
    blocks = dict(
        tiled=True, blockxsize=512, blockysize=512, compress="deflate", BIGTIFF="IF_SAFER"
    )
    return open_raster(path, "w", height=height, width=width, **kind, **blocks, **profile)


def join_maps(
    path: Path,
    rows: dict[int, Path],
    raster: Raster,
    classes: Sequence[str],
    palette: Palette | None,
) -> None:
    """Join the files of rows, by the number of their first row, into a Cloud-Optimized GeoTIFF,
    block by block.

    Its band has the palette as color table and the tag CLASSES, a JSON list of names. Its .aux.xml
    names the classes for GDAL and QGIS.
    """
    from rasterio.shutil import copy
    from rasterio.windows import Window

    nodata, whole = no_class(classes), next(iter(rows.values())).with_name("whole.tif")
    place = dict(crs=raster.crs, transform=raster.transform, photometric="palette")
    colors = enumerate(make_palette(len(classes), palette)[:, ::-1].tolist())
    with (
        gdal(path, "written"),
        create_map(whole, raster.height, raster.width, classes, **place) as file,
    ):
        file.write_colormap(
            1, {number: (*color, 255) for number, color in colors} | {nodata: (0, 0, 0, 0)}
        )
        file.update_tags(CLASSES=json.dumps(list(classes)))
        for first, part in rows.items():
            with open_raster(part) as strip:
                for _, window in strip.block_windows(1):
                    moved = Window(
                        window.col_off, first + window.row_off, window.width, window.height
                    )
                    file.write(strip.read(1, window=window), 1, window=moved)
    with atomic_path(path) as optimized, gdal(path, "written"):
        copy(
            whole,
            optimized,
            driver="COG",
            compress="DEFLATE",
            overview_resampling="NEAREST",
            bigtiff="IF_SAFER",
        )
    names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
    band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
    with atomic_write(path.with_name(f"{path.name}.aux.xml")) as aux:
        aux.write(f"<PAMDataset>{band}</PAMDataset>".encode())
