"""One raster in, one map or one table of objects out: row by row of tiles, each row in a file of
its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import shapely
import torch
from mmengine.config import Config
from shapely.affinity import affine_transform

from ..prediction.cluster import rank_and_size, wait_for_ranks
from ..prediction.predictor import Predictor
from ..prediction.tiles import overlap_of_tiles
from ..utils.cli import print_line
from ..utils.configs import ModelInput
from ..utils.errors import reason
from ..utils.folders import SETTINGS, check_output, open_folder
from . import maps, objects
from .files import UNFINISHED, rows_folder
from .options import LOADING
from .polygons import footprint, read_area
from .raster import Raster
from .rows import Rows, list_rows


def predict_raster(
    raster: str | Path,
    predictor: Predictor,
    out: str | Path,
    *,
    bands: Sequence[int] | None = None,
    bounds: Sequence[float] | None = None,
    percentiles: Sequence[float] | None = None,
    nodata: float | None = None,
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
        bands, bounds, percentiles, nodata, gsd: As of `Raster`. Default: as in the training, if the
            config has `raster = dict(gsd=..., bands=...)`.
        aoi: Vector file, whose polygons limit the prediction.
        crs: Coordinate system of the objects, such as EPSG:4326. Default: the raster's; in GeoJSON
            WGS 84.
        tile: Side of a tile in pixels. Default: that of the predictor, of the training, or of the
            config's images.
        overlap: Minimum overlap of tiles in pixels. Default: likewise, or a quarter of the tile.
        overwrite: Whether to replace a result of an earlier call, and to start again.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster, the model or the unfinished rows, or
            `out` is one of the user's files.
        OSError: If a file cannot be read or written, or another process writes the same result.
        RuntimeError: If GDAL cannot read `aoi`, PROJ does not know `crs`, or another process of
            torchrun failed.
        ModuleNotFoundError: If a library of xcit_mm[raster] is not installed.
    """
    out = Path(out)
    is_first = rank_and_size()[0] == 0
    with ExitStack() as opened:
        with _together():
            _check_format(out, predictor.is_detector, crs)
            check_output(out, [raster] if aoi is None else [raster, aoi])
            is_kept = _is_result(out, predictor.is_detector, overwrite) and not overwrite
            if not is_kept:
                options: dict[str, Any] = dict(bands=bands, bounds=bounds, percentiles=percentiles)
                options |= dict(nodata=nodata, gsd=gsd)
                if is_first:
                    _note_changes(predictor.cfg, options | dict(tile=tile, overlap=overlap))
                source = _open_raster(raster, predictor.cfg, options)
                _check_place(source, out, crs)
                area = None if aoi is None else _area_of_interest(aoi, source)
                tile, overlap = _tiling(predictor, tile, overlap)
                rows = Rows(source, predictor, out, area, tile, overlap)
                if is_first:
                    opened.enter_context(_opened(rows, crs, overwrite))
        if not is_kept:
            with _together():
                rows.predict()
            if is_first:
                rows.join(crs)
    if is_first:
        if is_kept:
            print_line(f"{out} exists and is kept: --overwrite predicts it again")
        _remove_rows(out)
    return out


@contextmanager
def _together() -> Iterator[None]:
    """End a block in all processes of torchrun at once. An error in one is an error in all."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    _, size = rank_and_size()
    if size > 1:
        failures: list[str | None] = [None] * size
        wait_for_ranks()
        torch.distributed.all_gather_object(failures, failure and reason(failure))
        for other in filter(None, failures):
            raise failure or RuntimeError(f"another process failed: {other}")
    if failure is not None:
        raise failure


@contextmanager
def _opened(rows: Rows, crs: str | None, overwrite: bool) -> Iterator[None]:
    """Keep other processes out of the folder of rows, and compare its settings."""
    for note in rows.raster.notes:
        print_line(f"{rows.raster.path}: {note}")
    results = [rows.out, maps.description_path(rows.out), *list_rows(rows.out)]
    settings = rows.settings | dict(crs=crs)
    with open_folder(rows.folder, settings, overwrite, lambda: results):
        for path in rows.folder.glob(f"{UNFINISHED}*"):
            path.unlink()
        yield


def _remove_rows(out: Path) -> None:
    """Remove the rows of a result, and their folder if nothing else is in it."""
    folder = rows_folder(out)
    if folder.exists():
        with open_folder(folder, {}, overwrite=True, list_results=lambda: list_rows(out)):
            (folder / SETTINGS).unlink()
        with suppress(OSError):
            folder.rmdir()


def _is_result(out: Path, is_detector: bool, overwrite: bool) -> bool:
    """Return whether a result exists. Raise ValueError if something of the user's does."""
    if not out.exists():
        return False
    try:
        if is_detector:
            _, layers = objects.read_table(out)
            is_result = not overwrite or set(layers) <= set(objects.ERROR_LAYERS)
        else:
            is_result = maps.is_map(out)
    except Exception:  # a library cannot read it
        is_result = False
    if not is_result:
        raise ValueError(f"--out {out} exists and is no result of such a run: give another --out")
    return True


def _open_raster(path: str | Path, cfg: Config, options: dict[str, Any]) -> Raster:
    """Open a raster as the model's config reads it. Options are those of `Raster`, or None."""
    options = {name: value for name, value in options.items() if value is not None}
    step = ModelInput(cfg).raster_step
    if step is not None and ("bounds" in options or "percentiles" in options):
        names = "--bounds, --percentiles"
        raise ValueError(f"{names}: the config loads rasters without a scale, leave them out")
    trained = _trained_with(cfg)
    if "percentiles" in options:
        trained.pop("bounds", None)
    options = {name: trained[name] for name in LOADING if name in trained} | options
    if step is not None and "bands" not in options:
        options["bands"] = step.get("bands")
    return Raster(path, channels=ModelInput(cfg).bands or 3, raw=step is not None, **options)


def _trained_with(cfg: Config) -> dict[str, Any]:
    """Return how the rasters were read on which a model was trained, as far as its config says."""
    return dict(gsd=cfg.get("gsd")) | (cfg.get("raster") or {})


def _note_changes(cfg: Config, options: dict[str, Any]) -> None:
    """Print a line for each option that has another value than in the training."""
    for name, trained in _trained_with(cfg).items():
        value = options.get(name)
        if value is not None and trained is not None and not np.array_equal(value, trained):
            values = " ".join(map(str, np.ravel(value)))
            print_line(f"--{name} {values}: the model was trained with {trained}")


def _check_format(out: Path, is_detector: bool, crs: str | None) -> None:
    suffixes = objects.SUFFIXES if is_detector else maps.SUFFIXES
    if out.suffix not in suffixes:
        model = "detector" if is_detector else "segmentor"
        raise ValueError(f"--out {out}: a {model} writes {', '.join(suffixes)}, give such a name")
    if crs is not None and not is_detector:
        raise ValueError(f"--crs {crs}: a map has the raster's, use gdalwarp -t_srs")
    if crs is not None and out.suffix == ".geojson":
        raise ValueError(f"--crs {crs}: GeoJSON is in WGS 84, leave it out")


def _check_place(raster: Raster, out: Path, crs: str | None) -> None:
    """Raise ValueError if the coordinate system of the result does not suit the raster."""
    import geopandas

    if raster.crs is None and (crs or out.suffix == ".geojson"):
        fix = "write .gpkg or .parquet without --crs"
        raise ValueError(f"{raster.path} has no coordinate system: {fix}")
    if crs is not None:
        rectangle = footprint(raster).union_all()
        shapes = geopandas.GeoSeries([rectangle, rectangle.centroid], crs=raster.crs).to_crs(crs)
        if not shapes[0].contains(shapes[1]):  # torn where longitudes end at 180 degrees
            fix = "write .geojson, or leave --crs out"
            raise ValueError(f"--crs {crs} ends within {raster.path}: {fix}")


def _area_of_interest(path: str | Path, raster: Raster) -> Any:
    """Return the area of interest in pixels."""
    pixel_size = abs(raster.transform.determinant)
    area = read_area(path, raster.crs, footprint(raster), smallest=pixel_size)
    area = affine_transform(area, (~raster.transform).to_shapely())
    shapely.prepare(area)
    return area


def _tiling(predictor: Predictor, tile: int | None, overlap: int | None) -> tuple[int, int]:
    """Return side and minimum overlap of tiles: those given, of the predictor, of the training, or
    of the config's images.
    """
    trained = _trained_with(predictor.cfg)
    if tile is None and predictor.tile is not None:
        return predictor.tile, predictor.overlap if overlap is None else overlap
    if tile is None and "tile" in trained:
        return trained["tile"], trained["overlap"] if overlap is None else overlap
    tile = tile or ModelInput(predictor.cfg).side
    if tile is None:
        raise ValueError(
            "the config does not state the size of its images: give --tile PIXELS, that of training"
        )
    return tile, overlap_of_tiles(tile, overlap)
