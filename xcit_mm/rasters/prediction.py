"""One raster in, one map or one table of objects out."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..prediction.cluster import rank_and_size, wait_for_ranks
from ..prediction.predictor import Predictor
from ..utils.cli import print_line
from ..utils.folders import check_output, lock_folder, open_folder
from .files import rows_folder
from .maps import description_path
from .rows import Rows


def predict_raster(
    raster: str | Path,
    predictor: Predictor,
    out: str | Path,
    *,
    aoi: str | Path | None = None,
    whole: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Predict a raster, and write a segmentor's map or a detector's table of objects.

    The folder `OUT.parts` holds the rows of tiles that are done, until all are: the same call
    resumes. With `whole`, it holds the trunk's finished taps, 16 bytes a token and channel, if they
    take more than 1 GiB. Processes of torchrun share the rows, and the first writes the result.

    Args:
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` for a segmentor, `.gpkg` for a detector. A finished result stays, as a line
            says.
        aoi: Vector file, whose polygons limit the prediction.
        whole: Whether the trunk sees the raster whole, and only neck and heads see tiles.
        overwrite: Whether to replace the result of an earlier call.
        options: `tile` and `overlap` in pixels, and `bands`, `bounds` and `nodata` of `Raster`.
            Default: those of `raster = dict(...)` in the config.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster or the model, or rows were made by
            another model or option.
        OSError, RuntimeError: If a file cannot be read or written, or another process writes the
            same result.
        ModuleNotFoundError: If a library of xcit_mm[raster] is not installed.
    """
    out = Path(out)
    check_output(out, [raster] if aoi is None else [raster, aoi])
    if predictor.tile is not None:
        raise ValueError(f"a Predictor with tile={predictor.tile}: give tile to predict_raster")
    suffix = ".gpkg" if predictor.is_detector else ".tif"
    if out.suffix != suffix:
        raise ValueError(f"--out {out}: the result of this model is a {suffix}")
    rank, size = rank_and_size()
    if whole and size > 1:
        raise ValueError("--whole runs in one process: start it without torchrun")
    if out.exists() and not overwrite:
        if rank == 0:
            print_line(f"{out} exists: --overwrite predicts it again")
            _remove_rows(out)  # which a kill may have left
        return out
    rows = Rows(raster, predictor, out, aoi, whole, options)
    earlier = [out, description_path(out), *rows_folder(out).glob("[!.]*")]
    folder = open_folder(rows_folder(out), rows.settings, overwrite, lambda: earlier)
    with nullcontext() if rank else folder:
        wait_for_ranks()
        rows.predict()
        wait_for_ranks()
        if rank == 0:
            rows.join()
    if rank == 0:
        _remove_rows(out)
    return out


def _remove_rows(out: Path) -> None:
    """Remove the folder of the rows of a finished result."""
    folder = rows_folder(out)
    if folder.exists():
        with lock_folder(folder, "--out"):
            shutil.rmtree(folder)
