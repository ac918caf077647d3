"""The tiles of a raster, row by row: each row is predicted into a file of its own."""

import os
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import shapely
import torch

from ..prediction.cluster import rank_and_size
from ..prediction.predictor import Predictor
from ..prediction.seams import concatenate, merge_objects
from ..prediction.tiles import Window, reported_objects, windows
from ..utils.cli import progress_bar
from ..utils.configs import ModelInput
from ..version import __version__
from . import maps, objects
from .files import UNFINISHED, write_bytes
from .raster import Raster


def rows_folder(out: Path) -> Path:
    """Return the folder of the rows of a result."""
    return out.with_name(f"{out.name}.parts")


def list_rows(out: Path) -> list[Path]:
    """List the files of rows and the unfinished files of a result."""
    folder = rows_folder(out)
    return [*folder.glob("row-*"), *folder.glob(f"{UNFINISHED}*")]


class Rows:
    """The rows of tiles of a raster.

    Args:
        out: The result, beside which is the folder of the rows.
        area: Polygons of shapely in pixels that limit the prediction, or None.
        tile: Side of a tile in pixels.
        overlap: Minimum overlap of tiles in pixels.

    Raises:
        ValueError: If tile and overlap do not match.
    """

    def __init__(
        self, raster: Raster, predictor: Predictor, out: Path, area: Any, tile: int, overlap: int
    ) -> None:
        self.raster = raster
        self.predictor = predictor
        self.out = out
        self.area = area
        self.tile = tile
        self.overlap = overlap
        self.windows = windows(raster.height, tile, overlap)
        self.columns = windows(raster.width, tile, overlap)
        self.classes = predictor.metainfo["classes"]
        self.folder = rows_folder(out)
        suffix = "json" if predictor.is_detector else "npz"
        numbers = range(len(self.windows))
        self.files = [self.folder / f"row-{number:05}.{suffix}" for number in numbers]
        # The pipeline would enlarge a raster smaller than a tile, and the model see a larger scale
        # than elsewhere.
        is_small = min(raster.height, raster.width) < tile
        self._is_padded = is_small and ModelInput(predictor.cfg).is_resized

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the rows, as plain values."""
        import rasterio

        path = Path(self.raster.path)
        bounds = self.raster.bounds
        return _model_settings(self.predictor) | dict(
            tile=self.tile,
            overlap=self.overlap,
            gsd=self.raster.gsd,
            bands=self.raster.bands,
            bounds=None if bounds is None else bounds.tolist(),
            size=[self.raster.height, self.raster.width],
            transform=self.raster.transform[:6],
            modified=os.stat(path).st_mtime_ns if path.exists() else None,
            aoi=None if self.area is None else f"{zlib.crc32(self.area.wkb):08x}",
            gdal=rasterio.__gdal_version__,
        )

    def predict(self) -> None:
        """Predict this process's rows that are not done."""
        rank, size = rank_and_size()
        numbers = range(rank, len(self.windows), size)
        with progress_bar(len(numbers) * len(self.columns), "tile", disable=rank > 0) as bar:
            for number in numbers:
                if not self.files[number].exists():
                    content = self._predict_row(self.windows[number])
                    write_bytes(self.files[number], self.folder, content)
                bar.update(len(self.columns))

    def join(self, crs: str | None) -> None:
        """Write the result of all rows. `crs` is the coordinate system of objects."""
        if not self.predictor.is_detector:
            firsts = [window.inside.start for window in self.windows]
            palette = self.predictor.metainfo.get("palette")
            files = dict(zip(firsts, self.files, strict=True))
            maps.join_maps(self.out, files, self.raster, self.classes, palette)
            return
        merged = merge_objects(concatenate(map(objects.read_objects, self.files)))
        if self.area is not None:
            centres = (merged.boxes[:, :2] + merged.boxes[:, 2:]) / 2
            merged = merged.select(shapely.contains_xy(self.area, centres))
        table = objects.make_table(merged, self.raster, self.classes)
        objects.write_table(self.out, self.folder, table, crs)

    def _predict_row(self, row: Window) -> bytes:
        """Return the content of a row's file."""
        if not self.predictor.is_detector:
            return maps.encode_labels(self._predict_labels(row))
        tiles = self._predict_tiles(row)
        reported = (reported_objects(found, row, column) for column, found, _ in tiles)
        return objects.encode_objects(concatenate(reported))

    def _predict_labels(self, row: Window) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first column and classes of the interior of each tile."""
        nodata = maps.no_class(self.classes)
        for column, prediction, valid in self._predict_tiles(row):
            height, width = valid.shape
            labels = np.where(valid, prediction.segmentation[:height, :width], nodata)
            labels = labels.astype(np.uint8 if nodata == 255 else np.uint16)
            yield column.inside.start, labels[row.crop, column.crop]

    def _predict_tiles(self, row: Window) -> Iterator[tuple[Window, Any, np.ndarray]]:
        """Yield column, prediction and valid pixels of each tile that has any, in batches."""
        batch: list[tuple[Window, np.ndarray, np.ndarray]] = []
        for column in self.columns:
            image, valid = self._read(row, column)
            if valid.any():
                batch.append((column, image, valid))
            is_full = len(batch) == self.predictor.batch_size
            if is_full or (batch and column is self.columns[-1]):
                predictions = self.predictor([image for _, image, _ in batch])
                for (tile, _, valid), prediction in zip(batch, predictions, strict=True):
                    yield tile, prediction, valid
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


def _model_settings(predictor: Predictor) -> dict[str, Any]:
    """Return everything about a model that determines its results."""
    cfg = predictor.cfg
    library = import_module("mmdet" if predictor.is_detector else "mmseg")
    config = zlib.crc32(repr(cfg.to_dict()).encode())
    weights = 0
    for name, tensor in predictor.model.state_dict().items():
        content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        weights = zlib.crc32(content, zlib.crc32(name.encode(), weights))
    settings = dict(
        config=f"{Path(cfg.filename or '').name} ({config:08x})",
        weights=f"{weights:08x}",
        dtype=str(getattr(predictor, "dtype", torch.float32)).removeprefix("torch."),
        min_score=predictor.min_score,
        xcit_mm=__version__,
    )
    return settings | {module.__name__: str(module.__version__) for module in (torch, library)}
