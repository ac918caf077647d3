"""`predict_raster`: one raster in, one map or table of objects out. The same call resumes."""

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

from ..prediction.joining import interior, reported_objects, to_image
from ..prediction.predictor import Predictor, as_predictor
from ..prediction.seams import concatenate
from ..prediction.seen import InTiles, Seen
from ..prediction.view import View, choose_view
from ..prediction.whole import SeenWhole, check_whole, is_exact_whole
from ..prediction.windows import Window
from ..utils.atomic import atomic_path
from ..utils.errors import ArgumentError
from ..utils.folders import as_json, check_is_shared, check_output, open_folder, scratch_folder
from ..utils.output import progress_bar, say
from ..utils.ranks import Ranks, all_ranks, is_first
from . import maps, objects
from .finished import check_same, read_made_from
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

    A map is a GeoTIFF of class numbers, 255 without data. A table is a GeoPackage of polygons with
    `class` and `score`. Both have the raster's place. Until the result is written, the folder
    `OUT.parts` holds the rows that are done, and the same call resumes. Processes of torchrun share
    the work, in a folder that all see, and the first writes the result. They see a raster whole
    together: each runs the trunk over a part of the rows. The result is that of one process, to
    rounding, and another number of processes can resume it.

    Args:
        model: A `Predictor`, or a model as `Predictor.from_pretrained` takes it.
        raster: Path or URL of a file that GDAL reads.
        out: `.tif` or `.tiff` for a segmentor, `.gpkg` for a detector. A finished result of the
            same raster, model and options stays, as a line says.
        checkpoint, device: As in `Predictor.from_pretrained`, for the name of a model.
        bands: Numbers of the bands, from 1.
        bounds: Stored values that become 0 and 255, a pair for all bands or one for each.
        nodata: A value without data, in addition to what the file declares.
        tile: Side of a tile in pixels of the raster.
        overlap: Pixels that neighbouring tiles, or a detector's windows, share at least.
            `bands`, `bounds`, `nodata`, `tile` and `overlap` are by default those of
            `raster = dict(...)` in the config.
        aoi: Vector file or GeoDataFrame. Only what lies in its polygons is predicted.
        whole: Whether the trunk sees the raster whole, and only neck and heads see windows.
            Default: for a segmentor that is exact so, without `aoi` and `tile`.
        scale, window: As in `Predictor`.
        scratch: Folder for what the trunk computes of a raster that it sees whole, 16 bytes for
            each channel of each token. Default: that of the rows.
        overwrite: Whether to replace the result of an earlier call, which stays until the new one
            is written.

    Returns:
        The path of the result, which exists when all processes have ended.

    Raises:
        ArgumentError: If an option does not match the raster or the model, or if there is a result
            of another raster, model or option, or rows of such a result. The message names it.
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
    former = read_made_from(out) if out.exists() and not overwrite else None
    whole = _sees_whole(predictor, whole, tile, aoi, former)
    given = dict(bands=bands, bounds=bounds, nodata=nodata, tile=tile, overlap=overlap)
    reading = resolve_settings(predictor.cfg, given)
    sizes = dict(tile=reading.pop("tile", None), overlap=reading.pop("overlap", None))
    if whole:
        sizes["tile"] = tile  # not that of the training
    sizes |= dict(scale=scale, window=window)
    view = choose_view(predictor.cfg, predictor.model, predictor.preprocess, whole, **sizes)
    with Raster(raster, **reading) as source:
        run = _Run(predictor, source, view, aoi, out, scratch)
        if former is not None:
            check_same(out, former, run.settings)
            say(f"{out} exists: set overwrite to predict it again")
            if not run.parts.exists():  # which a kill may have left
                return out
        with open_folder(run.parts, run.settings, overwrite) if is_first() else nullcontext():
            run.ranks.wait()
            check_is_shared(run.parts, run.ranks)
            if former is None:
                run.predict()
                run.ranks.wait()
                run.join()
        run.remove_parts()
    return out


def _check_result(out: Path, predictor: Predictor) -> None:
    """Raise ArgumentError if a predictor cannot write a result."""
    if predictor.view is not None:
        raise ArgumentError("model", "a Predictor with tile or whole: give these to predict_raster")
    suffixes = [".gpkg"] if predictor.is_detector else [".tif", ".tiff"]
    if out.suffix.lower() not in suffixes:
        raise ArgumentError("out", f"{out}: the result of this model is a {suffixes[0]}")
    classes = len(predictor.metainfo["classes"])
    if not predictor.is_detector and classes > maps.NODATA:
        raise ArgumentError("model", f"it has {classes} classes: a map has at most {maps.NODATA}")


def _sees_whole(
    predictor: Predictor,
    whole: bool | None,
    tile: int | None,
    aoi: Polygons | None,
    former: Mapping[str, Any] | None,
) -> bool:
    """Decide whether the trunk sees a raster whole. See docs/benchmark.md, "Whole images".

    Args:
        whole: As in `predict_raster`.
        former: What a finished result was made from. The model then needs no trial.
    """
    if whole and former is None:
        check_whole(predictor.model)
    if whole is not None:
        return whole
    if predictor.is_detector or tile is not None:
        return False
    if former and "whole" in former:
        return former["whole"]
    return aoi is None and is_exact_whole(predictor.model)


class _Run:
    """A raster whose rows of tiles or windows are predicted into files, which become the result.

    Attributes:
        settings: What determines the rows, as plain values.
        parts: Folder of the rows.
        ranks: The processes that share the rows.
    """

    def __init__(
        self,
        predictor: Predictor,
        raster: Raster,
        view: View,
        aoi: Polygons | None,
        out: Path,
        scratch: str | Path | None,
    ) -> None:
        self._predictor = predictor
        self._raster = raster
        self._view = view
        self._out = out
        self._area = area_in_pixels(aoi, raster)
        settings = {
            **predictor.settings,
            **view.settings,
            **raster.fingerprint(),
            "classes": predictor.metainfo["classes"],
            "aoi_polygons": crc32(shapely.to_wkb(self._area)),
        }
        self.settings = as_json(settings)
        self._made_from = self.settings | dict(
            raster=raster.path.partition("?")[0],  # the rest of a URL may be a password
            aoi=None if aoi is None else name_of(aoi),
            checkpoint=(predictor.arguments or {}).get("checkpoint"),
            date=f"{date.today()}",
        )
        self.parts = out.with_name(f"{out.name}.parts")
        group = all_ranks()
        self.ranks = Ranks(group)
        self._taps = self.parts if scratch is None else scratch_folder(scratch, out)
        self._seen: Seen
        if view.whole:
            self._seen = SeenWhole(predictor, raster, view, self._taps, group)
        else:
            self._seen = InTiles(predictor, raster, view)
        self._rows = self._seen.spread(0)
        self._columns = self._seen.spread(1)
        self._seen_area = scaled(self._area, *self._seen.scale[::-1], origin=(0, 0))
        shapely.prepare(self._seen_area)
        self._files = [self.parts / f"row-{row.inside.start:07}" for row in self._rows]

    def predict(self) -> None:
        """Predict the rows of this process that are not done, where they touch the area."""
        say(str(self._view))
        _note_differences(self._predictor.cfg, self._raster, self._view)
        rank = self.ranks.rank
        size = self.ranks.size
        rows = list(zip(self._rows, self._files, strict=True))[rank::size]
        pending = [
            (row, [column for column in self._columns if self._is_wanted(row, column)], path)
            for row, path in rows
            if not path.exists()
        ]
        # All processes see the image, though only one may have a row left.
        if not any(self.ranks.gather(bool(pending))):
            return
        total = sum(len(columns) for _, columns, _ in pending)
        with self._seen, progress_bar(total, "window", disable=rank > 0) as bar:
            for row, columns, path in pending:
                content = self._predict_row(row, columns)
                with atomic_path(path) as unfinished:
                    unfinished.write_bytes(content)
                bar.update(len(columns))

    def _is_wanted(self, row: Window, column: Window) -> bool:
        return self._seen_area.intersects(box_of(row, column))

    def _predict_row(self, row: Window, columns: list[Window]) -> bytes:
        """Predict the windows of a row, and return the content of its file: objects or classes."""
        places = ((row, column) for column in columns)
        parts = self._seen.parts(places, lambda *place: covers(self._seen_area, *place))
        scale = self._seen.scale
        if self._predictor.is_detector:
            reported = concatenate(map(reported_objects, parts))
            return objects.encode_objects(to_image(reported, scale))
        interiors = {}
        for part in parts:
            labels = np.where(part.valid, part.prediction.segmentation, maps.NODATA)
            (top, left), inside = interior(labels, part.rows, part.columns, scale)
            place = slice(top, top + len(inside)), slice(left, left + inside.shape[1])
            inside[~covers(self._area, *place)] = maps.NODATA
            interiors[top, left] = inside.astype(np.uint8)
        return maps.encode_labels(interiors)

    def join(self) -> None:
        """Join the files of all rows into the result. Only the first process does this."""
        if not is_first():
            return
        result = self._out, self._files, self._raster, self._made_from
        if self._predictor.is_detector:
            objects.join_objects(*result, self._area)
        else:
            maps.join_maps(*result, self._predictor.metainfo.get("palette"))

    def remove_parts(self) -> None:
        """Remove the files of the rows, and what the trunk has computed."""
        if is_first():
            for folder in (self.parts, self._taps):
                shutil.rmtree(folder, ignore_errors=True)


def _note_differences(cfg: Mapping[str, Any], raster: Raster, view: View) -> None:
    """Print a line for what differs between a raster and that of the model's training."""
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
            say(f"{raster.path} has {sizes}: a scale of {fitting:.3g} shows it at the same")
