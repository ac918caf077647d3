"""One raster in, one map or one table of objects out."""

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ..prediction.cluster import rank_and_size, wait_for_ranks
from ..prediction.predictor import Predictor
from ..utils.cli import print_line
from ..utils.folders import SETTINGS, check_output, lock_folder, open_folder
from . import maps, objects
from .files import UNFINISHED, rows_folder
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
    resumes. Several processes of torchrun share the rows, and the first writes the result.

    With `whole`, the trunk sees the raster whole, in passes over bands of rows. The folder holds
    its finished taps, 16 bytes a token and channel, if they take more than 1 GiB.

    Args:
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` for a segmentor, `.gpkg` for a detector. A finished result stays, as a line
            says.
        aoi: Vector file, whose polygons limit the prediction.
        whole: Whether the trunk sees the raster whole, and only neck and heads see tiles.
        overwrite: Whether to remove the result of an earlier call, and to start again.
        options: `tile` and `overlap` in pixels, and `bands`, `bounds`, `percentiles` and `nodata`
            of `Raster`. Default: those of `raster = dict(...)` in the config.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ValueError: If an option does not match the raster or the model, `out` is another file, or
            rows were made by another model or option.
        OSError: If a file cannot be read or written, or another process writes the same result.
        RuntimeError: If GDAL cannot read `aoi`.
        ModuleNotFoundError: If a library of xcit_mm[raster] is not installed.
    """
    out = Path(out)
    check_output(out, [raster] if aoi is None else [raster, aoi])
    _check_out(out, predictor)
    rank, size = rank_and_size()
    if whole and size > 1:
        raise ValueError("--whole runs in one process: start it without torchrun")
    if out.exists() and not overwrite:
        if rank == 0:
            print_line(f"{out} exists: --overwrite predicts it again")
            _remove_rows(out)  # which a kill may have left
        return out
    rows = Rows(raster, predictor, out, aoi, whole, options)
    earlier = [out, maps.description_path(out), *_list_rows(out)]
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


def _check_out(out: Path, predictor: Predictor) -> None:
    """Raise ValueError if a path cannot be that of a result, or is another file."""
    if predictor.tile is not None:
        raise ValueError(f"a Predictor with tile={predictor.tile}: give tile to predict_raster")
    suffix = ".gpkg" if predictor.is_detector else ".tif"
    if out.suffix != suffix or "!" in str(out):  # by which pyogrio finds files in archives
        raise ValueError(f"--out {out}: the result of this model is a {suffix}, without ! in it")
    is_result = objects.is_table if predictor.is_detector else maps.is_map
    if out.exists() and not is_result(out):
        raise ValueError(f"--out {out} is not a result of xcit-mm raster: give another --out")


def _list_rows(out: Path) -> list[Path]:
    """List the files of the rows of a result, its taps, and those that were being written."""
    folder = rows_folder(out)
    return [path for name in ("row-*", "tap*", f"{UNFINISHED}*") for path in folder.glob(name)]


def _remove_rows(out: Path) -> None:
    """Remove the rows of a finished result, and their folder if nothing else is in it."""
    folder = rows_folder(out)
    if folder.exists():
        with lock_folder(folder, "--out"):
            for path in [*_list_rows(out), folder / SETTINGS]:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
