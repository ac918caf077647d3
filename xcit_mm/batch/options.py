"""Options of a run: those that determine its results, and those of its execution."""

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mmengine.device import get_device

from ..models.precision import DTYPES
from ..prediction.drawing import COLOR_BY
from ..prediction.tiles import check_tile
from .shards import FORMATS


@dataclass(frozen=True)
class RunOptions:
    """Options that determine the results of a run. A run resumes only with equal options.

    Attributes:
        format: 'coco' for JSON files that pycocotools reads, or 'parquet'.
        shard_size: Maximum number of images in a shard.
        tile: Side in pixels of the tiles that images are split into. By default, images are not split, and the tiles of
            rasters are as large as the config's images.
        overlap: Minimum overlap of tiles in pixels. The default is a quarter of the tile.
        dtype: Data type of the computation, one of `DTYPES`, or 'auto' for `fast_dtype` of the device.
        tta: Whether to merge several views of each image, by the config's `tta_model`.
        min_score: Minimum score of the stored objects. The default is that of the config.
        bands: Bands of rasters, from 1: red, green and blue, or the bands in place of those that the config loads.
        bounds: Values of rasters that become 0 and 255: a lower and an upper one for all bands, or for each band.
        percentiles: Percentiles of rasters that become 0 and 255, without `bounds`. The default is `PERCENTILES`.
        gsd: Metres per pixel at which rasters are read. The default is the `gsd` of the config, or the raster's own.
        aoi: Path of a GeoJSON, outside whose polygons rasters are not predicted; in the manifest its content.
        crs: Coordinate system of the polygons of rasters. The default is the raster's own.

    Raises:
        ValueError: If an option is out of its range.
        ModuleNotFoundError: If the format needs a library that is not installed.
    """

    format: str = "coco"
    shard_size: int = 256
    tile: int | None = None
    overlap: int | None = None
    dtype: str = "float32"
    tta: bool = False
    min_score: float | None = None
    bands: Sequence[int] | None = None
    bounds: Sequence[float] | None = None
    percentiles: Sequence[float] | None = None
    gsd: float | None = None
    aoi: str | None = None
    crs: str | None = None

    def __post_init__(self) -> None:
        _check_minimum("shard_size", self.shard_size, 1)
        if self.gsd is not None and not 0 < self.gsd < 1e6:
            raise ValueError(f"gsd={self.gsd}: give metres per pixel, more than 0")
        _check_choice("format", self.format, FORMATS)
        _check_choice("dtype", self.dtype, (*DTYPES, "auto"))
        if self.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
            raise ModuleNotFoundError("--format parquet needs pyarrow: pip install xcit_mm[parquet]")
        if self.tile is not None:
            check_tile(self.tile, self.tile // 4 if self.overlap is None else self.overlap)
        elif self.overlap is not None:
            raise ValueError(f"overlap={self.overlap} without a tile: give the side of the tiles too")


@dataclass(frozen=True)
class Drawing:
    """Options of the visualizations, which are drawn again without predicting again.

    Attributes:
        visualize: Whether to draw the results over the images.
        score_thr: Minimum score to draw.
        alpha: Opacity of drawn masks, from 0 to 1.
        labels: Whether to draw names and scores, or the legend of a segmentation map.
        color_by: 'class' or 'instance', each of which then has a color of its own.

    Raises:
        ValueError: If an option is out of its range.
    """

    visualize: bool = True
    score_thr: float = 0.3
    alpha: float = 0.5
    labels: bool = True
    color_by: str = COLOR_BY[0]

    def __post_init__(self) -> None:
        _check_choice("color_by", self.color_by, COLOR_BY)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha}: must be from 0 to 1")


@dataclass(frozen=True)
class Execution:
    """Options of how a run is executed. They change results only by rounding.

    Attributes:
        device: Device of torch. The default is a GPU, if there is one.
        batch_size: Number of images of one size, or of tiles, in a batch.
        workers: Number of processes that read images for each model. The default is 2, or 0 if the CPU predicts.
        launcher: 'none', or 'pytorch' in a process started by torchrun.
        ray: Address of a Ray cluster, 'auto' for the cluster of this machine, or 'local'.
        overwrite: Whether to remove the results of an earlier run first.
        update: Whether to take inputs that are new since the run started, and to drop those that vanished.
        retry_failed: Whether to predict only inputs that failed before.
        redraw: Whether to predict nothing, and draw the stored results in this process.
        max_failures: Number of failures, of each process that predicts, after which the run ends with an error. By
            default, only the failure of an input that was predicted before ends a process.
        timeout: Maximum seconds for an image, a frame of a video or a tile of a raster, or for a batch of them. An
            input that exceeds them is a failure. With a limit, another process predicts, which the system can end.

    Raises:
        ValueError: If an option is out of its range, or two options exclude each other.
    """

    device: str | None = None
    batch_size: int = 1
    workers: int | None = None
    launcher: str = "none"
    ray: str | None = None
    overwrite: bool = False
    update: bool = False
    retry_failed: bool = False
    redraw: bool = False
    max_failures: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        _check_minimum("batch_size", self.batch_size, 1)
        _check_minimum("workers", self.workers or 0, 0)
        if self.launcher not in ("none", "pytorch"):
            raise ValueError(f"launcher={self.launcher!r}: must be none or pytorch")
        given = [name for name in ("overwrite", "update", "retry_failed", "redraw") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one of them")
        _check_minimum("max_failures", self.max_failures or 0, 0)
        if self.timeout is not None and not 0 < self.timeout < 1e6:
            raise ValueError(f"timeout={self.timeout}: give seconds, more than 0")
        if self.ray and self.launcher != "none":
            raise ValueError("ray and launcher exclude each other: give one of them")

    @property
    def num_workers(self) -> int:
        """Number of processes that read images: `workers` or its default."""
        if self.workers is not None:
            return self.workers
        # The actors of Ray may have a GPU. A model on the CPU uses all cores itself.
        return 0 if not self.ray and (self.device or get_device()) == "cpu" else 2


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}")


def _check_minimum(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise ValueError(f"{name}={value}: must be at least {minimum}")
