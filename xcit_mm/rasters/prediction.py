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
from .polygons import footprint, read_area, to_pixels
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
        tile: Side of a tile in pixels. Default: the tile of the predictor, of the training, or the
            side of the config's images.
        overlap: Minimum overlap of tiles in pixels. Default: the overlap that belongs to the
            default of `tile`, or a quarter of the tile.
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
    options = dict(bands=bands, bounds=bounds, percentiles=percentiles, nodata=nodata, gsd=gsd)
    with _together():
        _check_format(out, predictor.is_detector, crs)
        check_output(out, [raster] if aoi is None else [raster, aoi])
        is_kept = _has_result(out, predictor.is_detector, overwrite) and not overwrite
    if is_kept:
        if is_first:
            print_line(f"{out} exists and is kept: --overwrite predicts it again")
            _remove_rows(out)
        return out
    with ExitStack() as rows_are_open:
        with _together():
            if is_first:
                _note_changes(predictor.cfg, options | dict(tile=tile, overlap=overlap))
            source = _open_raster(raster, predictor.cfg, options)
            _check_crs(source, out, crs)
            area = None if aoi is None else _read_area(aoi, source)
            rows = Rows(source, predictor, out, area, *_find_tiling(predictor, tile, overlap))
            if is_first:
                rows_are_open.enter_context(_open_rows(rows, crs, overwrite))
        with _together():
            rows.predict()
        if is_first:
            rows.join(crs)
    if is_first:
        _remove_rows(out)
    return out


@contextmanager
def _together() -> Iterator[None]:
    """Wait at the end of a block for all processes of torchrun. An error in one process is raised
    in all of them.
    """
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
        reasons = list(filter(None, failures))
        if failure is None and reasons:
            failure = RuntimeError(f"another process failed: {reasons[0]}")
    if failure is not None:
        raise failure


@contextmanager
def _open_rows(rows: Rows, crs: str | None, overwrite: bool) -> Iterator[None]:
    """Open the folder of rows, which no other run can open until the block ends.

    Lines tell what a user should know of the raster.

    Raises:
        BlockingIOError: If another run has opened the folder.
        ValueError: If the rows in it belong to other settings.
    """
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


def _has_result(out: Path, is_detector: bool, overwrite: bool) -> bool:
    """Return whether `out` is a result of an earlier call.

    Raises:
        ValueError: If it is another file, or would be overwritten with layers that a user added.
    """
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
    """Open a raster for a model.

    Args:
        options: Options of `Raster`. For those that are None, the values are those of the training
            or of the loading step, as far as the config states them.
    """
    model_input = ModelInput(cfg)
    step = model_input.raster_step
    chosen = {name: option for name, option in options.items() if option is not None}
    if step is not None and not chosen.keys().isdisjoint(("bounds", "percentiles")):
        names = "--bounds, --percentiles"
        raise ValueError(f"{names}: the config loads rasters without a scale, leave them out")
    defaults: dict[str, Any] = dict(bands=step.get("bands")) if step else {}
    trained = _trained_options(cfg)
    defaults |= {name: trained[name] for name in LOADING if name in trained}
    if "percentiles" in chosen:  # they replace the bounds
        defaults.pop("bounds", None)
    channels = model_input.bands or 3
    raster = Raster(path, channels=channels, raw=step is not None, **defaults | chosen)
    has_trained_bounds = "bounds" not in chosen and defaults.get("bounds") is not None
    if raster.dtype == "uint8" and step is None and has_trained_bounds:
        problem = "its 8 bits are scaled by the bounds of the training"
        raster.notes.append(f"{problem}: give --bounds 0 255 to keep its values")
    return raster


def _trained_options(cfg: Config) -> dict[str, Any]:
    """Return how the rasters were read on which a model was trained, as far as its config says."""
    return dict(cfg.get("raster") or {})


def _note_changes(cfg: Config, options: dict[str, Any]) -> None:
    """Print a line for each option that has another value than in the training."""
    for name, trained in _trained_options(cfg).items():
        chosen = options.get(name)
        if chosen is not None and trained is not None and not np.array_equal(chosen, trained):
            shown = " ".join(map(str, np.ravel(chosen)))
            print_line(f"--{name} {shown}: the model was trained with {trained}")


def _check_format(out: Path, is_detector: bool, crs: str | None) -> None:
    suffixes = objects.SUFFIXES if is_detector else maps.SUFFIXES
    if out.suffix not in suffixes:
        model = "detector" if is_detector else "segmentor"
        raise ValueError(f"--out {out}: a {model} writes {', '.join(suffixes)}, give such a name")
    if crs is not None and not is_detector:
        raise ValueError(f"--crs {crs}: a map has the raster's, use gdalwarp -t_srs")
    if crs is not None and out.suffix == ".geojson":
        raise ValueError(f"--crs {crs}: GeoJSON is in WGS 84, leave it out")


def _check_crs(raster: Raster, out: Path, crs: str | None) -> None:
    """Raise ValueError if the coordinate system of the result does not suit the raster."""
    import geopandas

    if raster.crs is None and (crs or out.suffix == ".geojson"):
        fix = "write .gpkg or .parquet without --crs"
        raise ValueError(f"{raster.path} has no coordinate system: {fix}")
    if crs is not None:
        rectangle = footprint(raster).union_all()
        shapes = geopandas.GeoSeries([rectangle, rectangle.centroid], crs=raster.crs).to_crs(crs)
        if not shapes[0].contains(shapes[1]):  # the raster crosses 180 degrees
            fix = "write .geojson, or leave --crs out"
            raise ValueError(f"--crs {crs} ends within {raster.path}: {fix}")


def _read_area(path: str | Path, raster: Raster) -> Any:
    """Read the area of interest, in pixels."""
    pixel_area = abs(raster.transform.determinant)
    area = read_area(path, raster.crs, footprint(raster), smallest=pixel_area)
    area = to_pixels(area, raster)
    shapely.prepare(area)
    return area


def _find_tiling(predictor: Predictor, tile: int | None, overlap: int | None) -> tuple[int, int]:
    """Return side and minimum overlap of tiles, by default of the predictor, of the training, or
    of the config's images.
    """
    if tile is not None:
        return tile, overlap_of_tiles(tile, overlap)
    trained = _trained_options(predictor.cfg)
    default_overlap = None
    if predictor.tile is not None:
        tile = predictor.tile
        default_overlap = predictor.overlap
    elif "tile" in trained:
        tile = trained["tile"]
        default_overlap = trained["overlap"]
    else:
        tile = ModelInput(predictor.cfg).side
    if tile is None:
        fix = "give --tile PIXELS, as in the training"
        raise ValueError(f"the config does not state the size of its images: {fix}")
    return tile, overlap_of_tiles(tile, default_overlap if overlap is None else overlap)
