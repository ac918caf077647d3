"""One raster in, one map or one table of objects out: row by row of tiles, each row in a file of
its own.
"""

import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
import torch
from shapely.affinity import affine_transform

from ..prediction.predictor import Predictor
from ..prediction.processes import rank_and_size
from ..prediction.seams import concatenate, merge_objects
from ..prediction.tiles import Window, reported_objects, windows
from ..utils.atomic import atomic_path, atomic_write
from ..utils.cli import print_line, progress_bar
from ..utils.configs import ModelInput
from .gdal import gdal
from .maps import create_map, join_maps, no_class
from .objects import FORMATS, make_table, read_row, write_row, write_table
from .raster import PERCENTILES, Raster


def predict_raster(
    raster: str | Path,
    predictor: Predictor,
    out: str | Path,
    *,
    bands: Sequence[int] | None = None,
    bounds: Sequence[float] | None = None,
    percentiles: Sequence[float] | None = None,
    gsd: float | None = None,
    aoi: str | Path | None = None,
    crs: str | None = None,
    tile: int | None = None,
    overlap: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Predict a raster, and write a segmentor's map or a detector's table of objects.

    The folder `OUT.parts` holds the rows of tiles that are done, until all are: the same call
    resumes. Several processes of torchrun share the rows, and the first writes the result.

    Args:
        raster: Path or URL of a file that GDAL reads.
        predictor: A detector or segmentor. Its `batch_size`, `dtype` and `min_score` apply.
        out: `.tif` for a segmentor; `.gpkg`, `.geojson` or `.parquet` for a detector.
        bands, bounds, percentiles, gsd: As of `Raster`. Default of `gsd`: that of the config.
        aoi: Vector file, whose polygons limit the prediction.
        crs: Coordinate system of the objects, such as EPSG:4326. Default: the raster's; in GeoJSON
            WGS 84.
        tile: Side of a tile in pixels. Default: that of the config's images.
        overlap: Minimum overlap of tiles in pixels. Default: a quarter of the tile.
        overwrite: Whether to replace a result, and to start again.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster, the model or the unfinished rows.
        OSError: If a file cannot be read or written.
        RuntimeError: If GDAL cannot read `aoi`, or PROJ does not know `crs`.
        ModuleNotFoundError: If a library of xcit_mm[raster] is not installed.
    """
    out, cfg = Path(out), predictor.cfg
    if out.exists() and not overwrite:
        print_line(f"{out} exists and is kept: --overwrite predicts it again")
        return out
    inputs = ModelInput(cfg)
    step = inputs.raster_step
    if step is not None and (bounds or percentiles):
        raise ValueError(
            "--bounds, --percentiles: the config loads rasters without a scale, leave them out"
        )
    loading = bands or (step or {}).get("bands"), step is not None, gsd or cfg.get("gsd")
    source = Raster(raster, inputs.bands or 3, *loading, bounds, percentiles or PERCENTILES)
    _check_output(out, predictor.is_detector, crs, source)
    for note in source.notes:
        print_line(f"{raster}: {note}")
    tile = tile or predictor.tile or inputs.side
    if tile is None:
        raise ValueError(
            "the config does not state the size of its images: give --tile PIXELS, that of training"
        )
    overlap = tile // 4 if overlap is None else overlap
    area = None if aoi is None else _read_area(aoi, source)
    options = dict(
        tile=tile, overlap=overlap, bands=source.bands, bounds=str(source.bounds), gsd=gsd, crs=crs
    )
    options |= dict(aoi=area and area.wkt, min_score=predictor.min_score)
    run = _Run(source, predictor, out, area, tile, overlap)
    run.open(json.loads(json.dumps(options | _stamps(source, predictor))), overwrite)
    run.predict(crs)
    return out


def _check_output(out: Path, is_detector: bool, crs: str | None, raster: Raster) -> None:
    suffixes = FORMATS if is_detector else (".tif", ".tiff")
    if out.suffix not in suffixes:
        kind = "detector" if is_detector else "segmentor"
        raise ValueError(f"--out {out}: a {kind} writes {', '.join(suffixes)}, give such a name")
    if crs is not None and out.suffix not in (".gpkg", ".parquet"):
        other = (
            "GeoJSON is in WGS 84, leave it out"
            if is_detector
            else "a map has the raster's, use gdalwarp -t_srs"
        )
        raise ValueError(f"--crs {crs}: {other}")
    if raster.crs is None and (crs or out.suffix == ".geojson"):
        raise ValueError(
            f"{raster.path} has no coordinate system: write .gpkg or .parquet without --crs"
        )
    if crs is not None:
        import pyproj

        pyproj.CRS(crs)  # raises before the prediction


def _read_area(path: str | Path, raster: Raster) -> Any:
    """Return the polygons of a vector file in pixels of a raster."""
    import geopandas

    table = geopandas.read_file(path)
    polygons = table.geometry[table.geom_type.isin(["Polygon", "MultiPolygon"])]
    if polygons.empty or polygons.crs is None or raster.crs is None:
        problem = (
            "has no polygons" if polygons.empty else f"or {raster.path} has no coordinate system"
        )
        raise ValueError(f"--aoi {path} {problem}: give a file with them, or leave it out")
    area = affine_transform(
        polygons.to_crs(raster.crs).union_all(), (~raster.transform).to_shapely()
    )
    shapely.prepare(area)
    return area


def _stamps(raster: Raster, predictor: Predictor) -> dict[str, Any]:
    """Return what changes if the raster or the model does: place, size and time of a file, checksum
    of the weights.
    """
    changed = os.stat(raster.path).st_mtime_ns if Path(raster.path).exists() else None
    crc = 0
    for value in predictor.model.state_dict().values():
        crc = zlib.crc32(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), crc)
    return dict(raster=[raster.height, raster.width, *raster.transform[:6], changed], model=crc)


class _Run:
    """The rows of tiles of a raster, in a folder beside the result."""

    def __init__(
        self, raster: Raster, predictor: Predictor, out: Path, area: Any, tile: int, overlap: int
    ) -> None:
        self.raster, self.predictor, self.out, self.area, self.tile = (
            raster,
            predictor,
            out,
            area,
            tile,
        )
        self.rows, self.columns = (
            windows(length, tile, overlap) for length in (raster.height, raster.width)
        )
        self.folder = out.with_name(f"{out.name}.parts")
        suffix = "json" if predictor.is_detector else "tif"
        self.parts = [self.folder / f"row-{number:05}.{suffix}" for number in range(len(self.rows))]
        self.rank, self.world = rank_and_size()
        # The pipeline would enlarge a raster smaller than a tile, and the model see a larger scale
        # than elsewhere.
        self._is_padded = (
            ModelInput(predictor.cfg).is_resized and min(raster.height, raster.width) < tile
        )

    def open(self, options: dict[str, Any], overwrite: bool) -> None:
        """Store the options of the rows, or compare them with those of the rows that are done."""
        if overwrite:
            if self.world > 1:
                raise ValueError(
                    f"--overwrite with torchrun: remove {self.out} and {self.folder} first"
                )
            shutil.rmtree(self.folder, ignore_errors=True)
            self.out.unlink(missing_ok=True)
        path = self.folder / "run.json"
        if path.exists():
            earlier = json.loads(path.read_bytes())
            if different := [name for name in options if earlier.get(name) != options[name]]:
                raise ValueError(
                    f"{self.folder} has rows of another {', '.join(different)}: --overwrite starts again"
                )
        with atomic_write(path) as file:
            file.write(json.dumps(options).encode())

    def predict(self, crs: str | None) -> None:
        """Predict this process's rows that are not done. The first process waits for the others,
        and joins all.
        """
        mine = range(self.rank, len(self.rows), self.world)
        with progress_bar(len(mine) * len(self.columns), "tile", disable=self.rank > 0) as bar:
            for number in mine:
                if not self.parts[number].exists() and not self.out.exists():
                    self._predict_row(number)
                bar.update(len(self.columns))
        if self.rank > 0:
            return
        while missing := sum(not part.exists() for part in self.parts):
            print_line(f"waiting for {missing} rows of other processes")
            time.sleep(5)
        classes = self.predictor.metainfo["classes"]
        if self.predictor.is_detector:
            found = merge_objects(concatenate(map(read_row, self.parts)))
            if self.area is not None:
                found = found.select(
                    shapely.contains_xy(self.area, (found.boxes[:, :2] + found.boxes[:, 2:]) / 2)
                )
            write_table(self.out, make_table(found, self.raster, classes), crs)
        else:
            rows = {row.inside.start: part for row, part in zip(self.rows, self.parts, strict=True)}
            join_maps(self.out, rows, self.raster, classes, self.predictor.metainfo.get("palette"))
        shutil.rmtree(self.folder)

    def _predict_row(self, number: int) -> None:
        row = self.rows[number]
        classes, height = self.predictor.metainfo["classes"], row.inside.stop - row.inside.start
        if self.predictor.is_detector:
            found = (
                reported_objects(part, row, column) for column, part, _ in self._iter_tiles(row)
            )
            write_row(self.parts[number], concatenate(found))
            return
        path, width = self.parts[number], self.raster.width
        with (
            atomic_path(path) as new,
            gdal(path, "written"),
            create_map(new, height, width, classes) as file,
        ):
            for column, part, valid in self._iter_tiles(row):
                labels = np.where(
                    valid, part.segmentation[: len(valid), : valid.shape[1]], no_class(classes)
                )
                span = (0, height), (column.inside.start, column.inside.stop)
                file.write(labels[row.crop, column.crop].astype(file.dtypes[0]), 1, window=span)

    def _iter_tiles(self, row: Window) -> Iterator[tuple[Window, Any, np.ndarray]]:
        """Yield column, prediction and valid pixels of the tiles of a row that have any, in
        batches.
        """
        batch: list[tuple[Window, np.ndarray, np.ndarray]] = []
        for column in self.columns:
            image, valid = self._read(row, column)
            if valid.any():
                batch.append((column, image, valid))
            if len(batch) == self.predictor.batch_size or (batch and column is self.columns[-1]):
                found = self.predictor([image for _, image, _ in batch])
                yield from (
                    (column, part, valid)
                    for (column, _, valid), part in zip(batch, found, strict=True)
                )
                batch = []

    def _read(self, row: Window, column: Window) -> tuple[np.ndarray, np.ndarray]:
        """Read a tile and its valid pixels, all of which are False outside the area of interest."""
        from rasterio.features import geometry_mask

        shape = row.stop - row.start, column.stop - column.start
        span = slice(row.start, row.stop), slice(column.start, column.stop)
        inside = np.bool_(True)
        if self.area is not None:
            if not self.area.intersects(
                shapely.box(column.start, row.start, column.stop, row.stop)
            ):
                return np.zeros((0, 0, 0)), np.zeros(shape, bool)
            shift = type(self.raster.transform).translation(column.start, row.start)
            inside = geometry_mask([self.area], shape, shift, invert=True)
        image, valid = self.raster.read(*span)
        if self._is_padded:
            image = np.pad(image, [*((0, max(self.tile - length, 0)) for length in shape), (0, 0)])
        return image, valid & inside
