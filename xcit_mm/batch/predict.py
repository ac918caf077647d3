"""`predict_many`: a whole run over many inputs, from the listing of the inputs to the merged results."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from mmengine.device import get_device

from ..checks.preflight import check_checkpoint, check_device
from ..models.precision import fast_dtype
from ..prediction.predictor import check_options
from ..utils.configs import read_config, tested_metainfo
from ..utils.errors import reason
from ..weights.published import REMOTE_PREFIXES
from .inputs import find_inputs, read_category_ids
from .isolation import predict_suspects, run_with_timeout
from .manifest import ModelInfo, create_manifest
from .merging import RunReport, merge_shards
from .options import Drawing, Execution, RunOptions
from .raster_inputs import find_rasters, resolve_raster_options
from .redrawing import redraw
from .run import Run, open_run, start_run
from .shards import DamagedShard
from .workers import Ranks, run_distributed, run_local, run_on_ray


class RunError(RuntimeError):
    """Error that stopped a run after its start, as `__cause__`. Completed shards are kept, and the run can resume."""


def predict_many(
    source: str | Path,
    config: str | Path,
    checkpoint: str | Path,
    out: str | Path,
    options: RunOptions | None = None,
    execution: Execution | None = None,
    root: str | None = None,
    drawing: Drawing | None = None,
) -> RunReport | None:
    """Predict many images and videos by a detector or segmentor, and write the results to a folder.

    A run that was stopped resumes if it is started again with the same arguments; `execution` may differ. Notes and a
    progress bar are printed to stderr. docs/prediction.md describes the files.

    Args:
        source: Image, video, URL, folder, glob pattern, .txt of paths and URLs, or COCO .json; see `find_inputs`.
        config: Path of a config of mmdet or mmseg.
        checkpoint: Path, URL or `xcit://NAME`.
        out: Folder of the results.
        options: Options that determine the results.
        execution: Device, batch size, and processes.
        root: Base folder of relative paths in a list; see `find_inputs`.
        drawing: Options of the visualizations.

    Returns:
        Numbers of predicted and failed inputs, or None in the ranks of torchrun other than 0. Inputs that fail do not
        stop the run. After Ctrl-C, the results of completed inputs are merged, and `interrupted` is True.

    Raises:
        FileNotFoundError: If config, checkpoint or inputs are missing.
        FileExistsError: If the folder has the results of another run, or files of another origin.
        BlockingIOError: If another process runs in the folder.
        ValueError: If an argument is invalid.
        ModuleNotFoundError: If rasterio is needed and not installed.
        RunError: If the run stops after its start, for example because the disk is full.
        KeyboardInterrupt: If Ctrl-C was pressed before the start, in another rank than 0, or while results were merged.
    """
    options, execution, drawing = options or RunOptions(), execution or Execution(), drawing or Drawing()
    check_device(execution.device)
    config, checkpoint = str(config), str(checkpoint)
    check_checkpoint(checkpoint)
    if not checkpoint.startswith(REMOTE_PREFIXES):
        checkpoint = os.path.abspath(checkpoint)
    out = Path(os.path.abspath(out))
    ranks = Ranks() if execution.launcher == "pytorch" else None
    if ranks is not None and ranks.rank > 0:
        try:
            run_distributed(ranks, lambda: open_run(out, execution, drawing))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"rank {ranks.rank}") from None
        return None
    run = _start(out, config, checkpoint, str(source), root, options, execution, drawing)
    try:
        if execution.redraw:
            redraw(run)
        elif ranks is not None:
            run_distributed(ranks, lambda: run)
        elif execution.ray:
            run_on_ray(run)
        elif execution.timeout is not None:
            run_with_timeout(run)
        else:
            run_local(run)
        if not execution.redraw:
            predict_suspects(run)
        return _merge(run)
    except KeyboardInterrupt:
        return _merge_interrupted(run)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError) as error:
        raise RunError(f"{reason(error)} ({_state(run)}: start the run again to resume)") from error


def _start(
    out: Path,
    config: str,
    checkpoint: str,
    source: str,
    root: str | None,
    options: RunOptions,
    execution: Execution,
    drawing: Drawing,
) -> Run:
    """List the inputs, and start or resume the run."""
    fast = fast_dtype(execution.device or get_device())
    if options.dtype == "auto":
        options = replace(options, dtype=fast)
        print(f"dtype: {fast}", file=sys.stderr)
    elif options.dtype == "float32" != fast and not execution.redraw:
        print(f"this device computes faster in {fast}: --dtype auto", file=sys.stderr)
    cfg = read_config(config, [])
    check_options(cfg, options.tile, options.tta, options.min_score)
    inputs, notes = find_inputs(source, out, root)
    for note in notes:
        print(note, file=sys.stderr)
    if options.format == "parquet" and any(not isinstance(input_.image_id, int | None) for input_ in inputs):
        raise ValueError(f"format='parquet': {source} has ids that are not integers: give integers, or format='coco'")
    category_ids = None
    if cfg.get("default_scope") == "mmdet" and source.lower().endswith(".json"):
        category_ids = read_category_ids(Path(source), tested_metainfo(cfg)["classes"])
    options, model = resolve_raster_options(options, cfg), ModelInfo.from_config(cfg, category_ids)
    inputs, notes = find_rasters(inputs, options, model, None if execution.overwrite else out)
    for note in notes:
        print(note, file=sys.stderr)
    if options.tta and (raster := next((input_ for input_ in inputs if input_.size is not None), None)):
        raise ValueError(f"tta: {raster.path} is a raster, which is predicted in tiles: leave out one of them")
    manifest = create_manifest(cfg, checkpoint, source, inputs, options, model)
    run = start_run(out, manifest, inputs, execution, drawing)
    if run.completed() and not execution.retry_failed:
        print(f"resuming: {_state(run)}", file=sys.stderr)
    return run


def _state(run: Run) -> str:
    return f"{len(run.completed())} of {len(run.shards)} shards are completed"


def _merge(run: Run) -> RunReport:
    """Merge the shards. A damaged shard is predicted again."""
    while True:
        try:
            return merge_shards(run)
        except DamagedShard as error:
            print(f"{error}: predicting it again", file=sys.stderr)
            error.path.unlink()
            run.execution = replace(run.execution, retry_failed=False)
            (run_local if run.execution.timeout is None else run_with_timeout)(run)


def _merge_interrupted(run: Run) -> RunReport:
    """Merge the completed records after Ctrl-C."""
    try:
        return merge_shards(run, interrupted=True)
    except (DamagedShard, OSError, KeyboardInterrupt) as error:
        cause = str(error) or "a second time"
        raise KeyboardInterrupt(f"{cause}: the results are not merged; start the run again to resume it") from None
