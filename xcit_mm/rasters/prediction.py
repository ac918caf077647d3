"""One raster in, one map or one table of objects out."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ..prediction.cluster import rank_and_size, wait_for_ranks
from ..prediction.predictor import Predictor
from ..utils.cli import print_line
from ..utils.errors import preview, reason
from ..utils.folders import SETTINGS, check_output, check_settings, open_folder
from ..utils.images import TIFF_SUFFIXES
from . import maps, objects
from .files import list_rows, rows_folder
from .rows import Rows


def predict_raster(
    raster: str | Path,
    predictor: Predictor,
    out: str | Path,
    *,
    aoi: str | Path | None = None,
    crs: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Predict a raster, and write a segmentor's map or a detector's table of objects.

    The folder `OUT.parts` holds the rows of tiles that are done, until all are: the same call
    resumes, and keeps a finished result. Several processes of torchrun share the rows, and the
    first writes the result.

    Args:
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` for a segmentor; `.gpkg`, `.geojson` or `.parquet` for a detector.
        aoi: Vector file, whose polygons limit the prediction.
        crs: Coordinate system of the objects. Default: the raster's; in GeoJSON WGS 84.
        overwrite: Whether to replace a result of an earlier call, and to start again.
        options: `bands`, `bounds`, `percentiles`, `nodata` and `gsd` of `Raster`; `tile` and
            `overlap` of tiles in pixels. Default: those of the predictor, of `raster = dict(...)`
            in the config, or the side of the config's images and a quarter of the tile.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster or the model, `out` is one of the user's
            files, or a result or rows were made from another model, raster or setting.
        OSError: If a file cannot be read or written, or another process writes the same result.
        RuntimeError: If GDAL cannot read `aoi`, PROJ `crs`, or another process failed.
        ModuleNotFoundError: If a library of xcit_mm[raster] is not installed.
    """
    out = Path(out)
    is_first = rank_and_size()[0] == 0
    with ExitStack() as folder:
        with _together():
            _check_format(out, predictor.is_detector, crs)
            check_output(out, [raster] if aoi is None else [raster, aoi])
            earlier = _read_origin(out, predictor.is_detector, overwrite)
            rows = Rows(raster, predictor, out, aoi, crs, options)
            if is_first:
                folder.enter_context(_open_rows(out, rows.made_from, earlier, overwrite))
        if earlier is None:
            with _together():
                rows.predict()
            if is_first:
                rows.join()
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
        reasons: list[str | None] = [None] * size
        wait_for_ranks()
        torch.distributed.all_gather_object(reasons, failure and reason(failure))
        reasons = list(filter(None, reasons))
        if failure is None and reasons:
            failure = RuntimeError(f"another process failed: {reasons[0]}")
    if failure is not None:
        raise failure


@contextmanager
def _open_rows(
    out: Path, made_from: Mapping[str, Any], earlier: Mapping[str, Any] | None, overwrite: bool
) -> Iterator[None]:
    """Open the folder of the rows, unless an earlier result is kept. At the end of the block, the
    result is whole: the rows are removed, and their folder if nothing else is in it.

    Args:
        earlier: What the result of an earlier call was made from.
    """
    folder = rows_folder(out)
    if earlier is None:
        results = [out, maps.description_path(out), *list_rows(out)]
        with open_folder(folder, made_from, overwrite, lambda: results):
            yield
    else:
        check_settings(out, earlier, made_from)
        print_line(f"{out} exists and is kept: --overwrite predicts it again")
        yield
    if folder.exists():
        with open_folder(folder, {}, overwrite=True, list_results=lambda: list_rows(out)):
            (folder / SETTINGS).unlink()
        with suppress(OSError):
            folder.rmdir()


def _read_origin(out: Path, is_detector: bool, overwrite: bool) -> dict[str, Any] | None:
    """Return what a result of an earlier call was made from, or None if there is none to keep.

    Raises:
        ValueError: If it is another file, or would be overwritten with layers that a user added.
    """
    if not out.exists():
        return None
    layers: set[str] = set()
    try:
        if is_detector:
            layers.update(objects.read_table(out)[1])
        origin = (objects if is_detector else maps).read_origin(out)
    except Exception:  # a library cannot read it
        origin = None
    added = sorted(layers.difference(objects.ERROR_LAYERS))
    if not origin or (overwrite and added):
        with_layers = f" with the layers {preview(added)}" if added else ""
        problem = f"exists{with_layers} and is not a result of such a run"
        raise ValueError(f"--out {out} {problem}: give another --out")
    return None if overwrite else origin


def _check_format(out: Path, is_detector: bool, crs: str | None) -> None:
    suffixes = objects.SUFFIXES if is_detector else TIFF_SUFFIXES
    if out.suffix not in suffixes:
        model = "detector" if is_detector else "segmentor"
        raise ValueError(f"--out {out}: a {model} writes {', '.join(suffixes)}, give such a name")
    if is_detector and {"!", ";"}.intersection(str(out)):
        raise ValueError(f"--out {out}: GDAL writes no tables into such paths, leave out ! and ;")
    if crs is not None and not is_detector:
        raise ValueError(f"--crs {crs}: a map has the raster's, use gdalwarp -t_srs")
    if crs is not None and out.suffix == ".geojson":
        raise ValueError(f"--crs {crs}: GeoJSON is in WGS 84, leave it out")
