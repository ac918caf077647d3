"""Rasters among the inputs of a run: their options, and their sizes, bounds and stamps, which are read once."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mmengine.config import Config

from ..geo import Raster, is_raster
from ..geo.area import read_area
from ..geo.files import is_remote
from ..geo.geojson import parse_crs
from ..geo.scaling import PERCENTILES, parse_bounds
from ..utils.configs import raster_step
from ..utils.errors import preview
from .inputs import Input
from .manifest import ModelInfo
from .options import RunOptions
from .run import open_run

_MAX_TILE = 1024  # pixels, of a raster that is one tile because the config does not state the size of its images
_UNKNOWN_SIZE = [1, 1]  # of a raster that cannot be opened


def resolve_raster_options(options: RunOptions, cfg: Config) -> RunOptions:
    """Replace the defaults by those of a config, and the path of an area of interest by its content."""
    step = raster_step(cfg)
    for name in ("bounds", "percentiles"):
        values = getattr(options, name)
        if step is not None and values is not None:
            text = " ".join(f"{value:g}" for value in values)
            raise ValueError(f"--{name} {text}: the config loads rasters unscaled (LoadRasterFromFile): leave it out")
    bands = options.bands or (step.get("bands") if step else None)
    if options.crs is not None and cfg.get("default_scope") != "mmdet":
        raise ValueError(f"--crs {options.crs}: of polygons, but a segmentor writes maps: use gdalwarp -t_srs")
    return replace(
        options,
        bands=bands,
        percentiles=options.percentiles or PERCENTILES,
        gsd=options.gsd or cfg.get("gsd"),
        aoi=None if options.aoi is None else read_area(options.aoi),
    )


def find_rasters(
    inputs: Sequence[Input], options: RunOptions, model: ModelInfo, out: Path | None = None
) -> tuple[list[Input], list[str]]:
    """Add size, bounds and stamp to the inputs that are read by windows: to all if the config loads rasters.

    A raster that cannot be read is reported when it is predicted, unless no input can be read.

    Args:
        out: Folder of an earlier run with these options, whose inputs are not opened again.

    Returns:
        The inputs, and notes on them.

    Raises:
        ValueError: If an option does not match the rasters or the model, or if no input can be read.
        OSError: If no input can be read.
        FileExistsError: If a raster has changed since the earlier run.
        ModuleNotFoundError: If rasterio is needed and not installed.
    """
    if options.bounds is not None:
        parse_bounds(options.bounds, model.channels)
    earlier = {} if out is None else {input_.path: input_ for input_ in _earlier_inputs(out, options, model)}
    found: list[Input] = []
    errors: list[Exception] = []
    notes: dict[str, list[str]] = {}
    for input_ in inputs:
        if not _is_raster(input_, options, model):
            found.append(input_)
            continue
        known = earlier.get(input_.path)
        if known is not None and known.size is not None:
            _check_unchanged(known, options, model)
            input_ = input_._replace(size=known.size, bounds=known.bounds, stamp=known.stamp)
        else:
            input_, error = _read_header(input_, options, model, notes)
            if error is not None:
                errors.append(error)
        if options.tile is None and model.image_side is None and max(input_.size or [0]) > _MAX_TILE:
            height, width = input_.size or _UNKNOWN_SIZE
            raise ValueError(
                f"{input_.path} would be one tile of {height} x {width} pixels, because the config does not state the "
                "size of its images: give --tile PIXELS, the side of the training images"
            )
        found.append(input_)
    if errors and len(errors) == len(inputs):
        raise errors[0]
    return found, [f"{preview(paths)}: {note}" for note, paths in notes.items()]


def _is_raster(input_: Input, options: RunOptions, model: ModelInfo) -> bool:
    if input_.is_video and model.loads_rasters:
        raise ValueError(f"{input_.path} is a video, but the config loads rasters (LoadRasterFromFile): give files")
    if input_.is_video or not (model.loads_rasters or is_raster(input_.path)):
        return False
    if options.format == "parquet":
        raise ValueError(
            f"format='parquet': {input_.path} is a raster, whose results are GeoTIFF or GeoJSON: leave it out"
        )
    return True


def _check_unchanged(known: Input, options: RunOptions, model: ModelInfo) -> None:
    """Raise FileExistsError if a raster has changed since the run began, other than by overviews."""
    stamp = _stamp(known.path)
    if known.stamp is None or stamp is None or known.stamp[:2] == stamp:
        return
    with contextlib.suppress(OSError, ValueError), open_raster_input(known, options, model) as raster:
        if raster.has_overviews and [raster.height, raster.width] == known.size and raster.checksum() == known.stamp[2]:
            return
    raise FileExistsError(
        f"{known.path} has changed since the run began: give another --out, or --overwrite to start again"
    )


def _read_header(
    input_: Input, options: RunOptions, model: ModelInfo, notes: dict[str, list[str]]
) -> tuple[Input, Exception | None]:
    """Add what can be read to an input, and the reason why the raster cannot be read further."""
    stamp = _stamp(input_.path)
    input_ = input_._replace(size=_UNKNOWN_SIZE, stamp=stamp)
    try:
        with open_raster_input(input_, options, model) as raster:
            input_ = input_._replace(size=[raster.height, raster.width])
            for note in raster.notes:
                notes.setdefault(note, []).append(input_.path)
            if raster.bounds is not None:
                input_ = input_._replace(bounds=[list(pair) for pair in raster.bounds])
            if stamp is not None:
                input_ = input_._replace(stamp=[*stamp, raster.checksum()])
    except (OSError, ValueError) as error:
        return input_, error
    return input_, None


def _stamp(path: str) -> list[int] | None:
    """Return size and modification time of a local file."""
    if is_remote(path) or not os.path.exists(path):
        return None
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _earlier_inputs(out: Path, options: RunOptions, model: ModelInfo) -> list[Input]:
    try:
        run = open_run(out)
    except (OSError, ValueError, TypeError, KeyError):  # start_run reports what the folder has
        return []
    current = json.loads(json.dumps(dict(options=asdict(options), model=asdict(model))))
    return run.inputs if current == {name: run.manifest[name] for name in current} else []


def open_raster_input(input_: Input, options: RunOptions, model: ModelInfo) -> Raster:
    """Open a raster as the model takes it."""
    bounds, percentiles = input_.bounds or options.bounds, options.percentiles or PERCENTILES
    raster = Raster(
        input_.path, options.bands, bounds, model.channels, percentiles, model.loads_rasters, options.gsd, options.aoi
    )
    if options.crs is not None:
        parse_crs(options.crs, raster.georeference)
    return raster
