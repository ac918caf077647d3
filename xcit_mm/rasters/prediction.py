"""`predict_raster`: one raster in, one map or table of objects out. The same call resumes."""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import shapely
from shapely.affinity import scale as scaled

from ..models.windows import Window
from ..prediction.joining import join_labels, pixels_in, reported_objects, to_image
from ..prediction.predictor import Predictor, as_predictor
from ..prediction.seams import concatenate
from ..prediction.seen import InTiles, Seen
from ..prediction.view import View, choose_view
from ..prediction.whole import SeenWhole, check_whole, is_exact_whole
from ..utils.atomic import atomic_write
from ..utils.errors import ArgumentError
from ..utils.folders import (
    SETTINGS,
    as_json,
    check_is_shared,
    check_output,
    clear_folder,
    find_change,
    find_other_run,
    lock_folder,
    open_folder,
    scratch_folder,
)
from ..utils.output import progress_bar, say
from ..utils.ranks import Ranks, all_ranks, is_first
from . import maps, objects
from .finished import read_made_from
from .polygons import Polygons, area_in_pixels, box_of, covers, name_of
from .raster import Numbers, Raster
from .settings import SCALING, resolve_settings


def predict_raster(
    model: str | Path | Predictor,
    raster: str | Path,
    out: str | Path,
    *,
    checkpoint: str | Path | None = None,
    device: str | None = None,
    bands: Sequence[int] | None = None,
    bounds: Numbers | None = None,
    nodata: float | None = None,
    tile: int | None = None,
    overlap: int | None = None,
    aoi: Polygons | None = None,
    whole: bool | None = None,
    scale: float | None = None,
    window: int | None = None,
    scratch: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Predict a raster, and write a segmentor's map or a detector's table of objects.

    A map is a GeoTIFF of class numbers, with 255 where the raster has no data. A table is a
    GeoPackage of polygons with `class` and `score`. Both have the raster's coordinate system. Until
    the result is written, the folder `OUT.parts` holds the rows that are done, and the same call
    resumes.

    Processes of torchrun share the work, in a folder that all of them see, and the first one writes
    the result. If the raster is seen whole, each process runs the trunk over a part of the rows.
    The result is that of one process, to rounding. The number of processes may change when a call
    resumes.

    `bands`, `bounds`, `nodata`, `tile` and `overlap` are by default those of `raster = dict(...)`
    in the config.

    Args:
        model: A `Predictor`, or a model as `Predictor.from_pretrained` takes it.
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` or `.tiff` for a segmentor, `.gpkg` for a detector. A finished result of the
            same raster, model and options stays, and a message says so.
        checkpoint, device: As in `Predictor.from_pretrained`, for the name of a model.
        bands: Numbers of the bands, from 1.
        bounds: Stored values that become 0 and 255, a pair for all bands or one for each.
        nodata: A value without data, in addition to what the file declares.
        tile: Side of a tile in pixels of the raster.
        overlap: Minimum number of pixels that neighbouring tiles, or a detector's windows, share.
        aoi: Vector file or GeoDataFrame. Only what lies in its polygons is predicted.
        whole: Whether the trunk sees the raster whole, and only neck and heads see windows.
            Default: True for a segmentor whose result is then exact, unless `aoi` or `tile` is
            given.
        scale, window: As in `Predictor`.
        scratch: Folder for what the trunk computes of a raster that it sees whole, 16 bytes for
            each channel of each token. Default: `OUT.parts`.
        overwrite: Whether to replace the result of an earlier call, which stays until the new one
            is written.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ArgumentError: If an option does not match the raster or the model, or if `out` or its
            `OUT.parts` was made from another raster, with another model or with other options. The
            message names what differs.
        ValueError: If the model cannot be built, the raster must be converted first, the area has
            several layers or no coordinate system, or the model cannot see whole images.
        OSError, RuntimeError: If a file cannot be read or written, another process writes the same
            result, or a process of torchrun has ended.

    Example:
        >>> from xcit_mm import Predictor, predict_raster
        >>> predict_raster("work_dirs/mosaic", "mosaic.tif", "found.gpkg")
        PosixPath('found.gpkg')
        >>> predictor = Predictor.from_pretrained("work_dirs/mosaic", batch_size=8)
        >>> out = predict_raster(predictor, "mosaic.tif", "in-tiles.gpkg", tile=512)
    """
    out = Path(out)
    check_output(out, [path for path in (raster, aoi) if isinstance(path, str | Path)])
    predictor = as_predictor(model, checkpoint, device)
    _check_result(out, predictor)
    if whole is None:  # see docs/benchmark.md, "Whole images"
        is_in_tiles = predictor.is_detector or tile is not None or aoi is not None
        whole = not is_in_tiles and is_exact_whole(predictor.model)
    elif whole:
        check_whole(predictor.model)
    if scratch is not None and not whole:
        raise ArgumentError("scratch", "the raster is not seen whole, but in tiles: leave it out")
    given = dict(bands=bands, bounds=bounds, nodata=nodata, tile=tile, overlap=overlap)
    reading = resolve_settings(predictor.cfg, given)
    side = reading.pop("tile", None)
    view = choose_view(
        predictor,
        whole,
        scale=scale,
        tile=tile if whole else side,  # the tile of the training is none of a whole raster
        overlap=reading.pop("overlap", None),
        window=window,
    )
    parts = out.with_name(f"{out.name}.parts")
    taps = parts if scratch is None else scratch_folder(scratch, out)
    group = all_ranks()
    ranks = Ranks(group)
    with Raster(raster, **reading) as source:
        area = area_in_pixels(aoi, source)
        checksum = dict(value=crc32(shapely.to_wkb(area)), change="the area is another")
        settings = predictor.settings | view.settings | source.fingerprint()
        settings = as_json(settings | dict(area=checksum))
        if out.exists() and not overwrite:
            _keep_result(out, settings, parts, taps)
            return out
        with open_folder(parts, settings, overwrite) if is_first() else nullcontext():
            ranks.wait()
            check_is_shared(parts, ranks)
            say(str(view))
            _note_differences(predictor.cfg, source, view)
            seen: Seen = InTiles(predictor, source, view)
            if view.whole:
                seen = SeenWhole(predictor, source, view, taps, group)
            rows = _predict_rows(seen, area, parts, ranks)
            ranks.wait()
            if is_first():
                made_from = settings | _origin(predictor, source, aoi)
                names = predictor.names
                if predictor.is_detector:
                    objects.write_table(out, rows, source, area, names, made_from)
                else:
                    maps.write_map(out, rows, source, names, predictor.palette, made_from)
                _remove(parts, taps)
    return out


def _keep_result(out: Path, settings: Mapping[str, Any], parts: Path, taps: Path) -> None:
    """Say that a finished result stays, and remove the rows that a kill has left of it.

    Rows of another call stay, too: it can still be resumed.

    Raises:
        ArgumentError: If the result is of another raster, model or option.
    """
    former = read_made_from(out)
    change = "another program wrote it"
    if former:
        change = find_change({name: former.get(name) for name in settings}, settings)
    if change:
        fix = "give another, or overwrite it"
        raise ArgumentError("out", f"{out} is of another run: {change}: {fix}")
    say(f"{out} exists: overwrite it to predict it again")
    if is_first() and (parts / SETTINGS).exists() and not find_other_run(parts, settings):
        with lock_folder(parts):
            _remove(parts, taps)


def _remove(parts: Path, taps: Path) -> None:
    """Remove the folder of the rows, which is locked, and that of the trunk's output."""
    clear_folder(parts)  # its run.json last: a kill must not leave rows of no run
    for folder in (parts, taps):
        shutil.rmtree(folder, ignore_errors=True)


def _origin(predictor: Predictor, raster: Raster, aoi: Polygons | None) -> dict[str, str | None]:
    """Return where a result comes from, apart from what determines it."""
    return dict(
        # Without the passwords that a URL may have.
        raster=re.sub("//[^/]*@", "//", raster.path.partition("?")[0]),
        aoi=None if aoi is None else name_of(aoi),
        checkpoint=(predictor.arguments or {}).get("checkpoint"),
        date=f"{date.today()}",
    )


def _check_result(out: Path, predictor: Predictor) -> None:
    """Raise ArgumentError if a predictor cannot write a result."""
    if predictor.view is not None:
        raise ArgumentError("model", "it has a tile or whole: give these to predict_raster instead")
    suffixes = [".gpkg"] if predictor.is_detector else [".tif", ".tiff"]
    if out.suffix not in suffixes:
        raise ArgumentError("out", f"{out}: give a name that ends in {suffixes[0]}")
    classes = len(predictor.names)
    if not predictor.is_detector and classes > maps.NODATA:
        raise ArgumentError("model", f"it has {classes} classes: a map has at most {maps.NODATA}")


def _predict_rows(seen: Seen, area: Any, folder: Path, ranks: Ranks) -> list[Path]:
    """Predict the rows of this process that touch an area and have no file.

    Returns:
        The files of all rows of tiles or windows that touch the area, from top to bottom.
    """
    columns = seen.spread(1)
    seen_area = scaled(area, *seen.scale[::-1], origin=(0, 0))
    shapely.prepare(seen_area)
    rows = {}
    for row in seen.spread(0):
        places = [(row, column) for column in columns if seen_area.intersects(box_of(row, column))]
        if places:
            rows[folder / f"row-{row.inside.start:07}"] = places
    own = list(rows.items())[ranks.rank :: ranks.size]
    pending = {path: places for path, places in own if not path.exists()}
    # All processes see the image, though only one may have a row left.
    if any(ranks.gather(bool(pending))):
        unit = "window" if seen.view.whole else "tile"
        total = sum(map(len, pending.values()))
        with seen, progress_bar(total, unit, ranks.rank > 0, desc=f"{unit}s") as bar:
            for path, places in pending.items():
                content = _predict_row(seen, places, area)
                with atomic_write(path) as file:
                    file.write(content)
                bar.update(len(places))
    return list(rows)


def _predict_row(seen: Seen, places: Sequence[tuple[Window, Window]], area: Any) -> bytes:
    """Return the content of a row's file: its objects, or the classes of its pixels."""
    parts = seen.parts(places)
    if seen.predictor.is_detector:
        reported = concatenate(map(reported_objects, parts))
        return objects.encode_objects(to_image(reported, seen.scale))
    height, width = seen.scale
    rows = pixels_in(places[0][0].inside, height)
    labels = np.full((rows.stop - rows.start, seen.source.width), maps.NODATA, np.uint8)
    join_labels(labels, parts, rows, slice(0, seen.source.width), seen.scale, maps.NODATA)
    for _, column in places:
        columns = pixels_in(column.inside, width)
        labels[:, columns][~covers(area, rows, columns)] = maps.NODATA
    return maps.encode_labels(rows.start, labels)


def _note_differences(cfg: Mapping[str, Any], raster: Raster, view: View) -> None:
    """Print a message for each difference between a raster and the raster of the training."""
    trained = cfg.get("raster")
    if trained and trained.get(SCALING) != raster.scaling:
        change = f"{trained.get(SCALING)} in the training, and are {raster.scaling} here"
        say(f"{raster.path}: scale and offset are not applied: they were {change}")
    large = cfg.get("large") or {}
    trained_size = large.get("pixel_size")
    if trained_size and large.get("scale") and raster.pixel_size:
        fitting = large["scale"] * raster.pixel_size / trained_size
        if not 0.8 <= view.scale / fitting <= 1.25:
            sizes = f"pixels of {raster.pixel_size:.3g} m, the training of {trained_size:.3g} m"
            say(f"{raster.path} has {sizes}: scale {fitting:.3g} shows it at the same size")
