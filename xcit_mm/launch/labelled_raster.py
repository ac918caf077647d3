"""A labelled raster for a fine-tuning: its tiles, and the config for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmengine.config import Config

from ..utils.config_parts import iter_parts, type_name
from ..utils.model_input import ModelInput
from ..weights.class_names import configured_classes
from .adapting import median_scale
from .whole_images import TILE

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_LOADING = ("LoadImageFromFile", "LoadRasterFromFile")
# Share of a proposal above which it counts neither as object nor as background.
_IGNORED_OVERLAP = 0.5


class LabelledRaster(NamedTuple):
    """A raster to train on.

    Attributes:
        path: A file that GDAL reads.
        labels: Its polygons: a vector file, or a GeoDataFrame.
        label_options: Further arguments of `LabelFile`.
        reading: How the raster is read, by the names in `READING`. None is no value.
        aoi: Polygons within which the labels are complete, or None for the whole raster.
        hold_out: Whether to hold out labels for the validation.
        whole: Whether it is one image, in place of tiles.
    """

    path: str | Path
    labels: Any
    label_options: Mapping[str, str | None]
    reading: Mapping[str, Any]
    aoi: Any
    hold_out: bool
    whole: bool

    def check_folder(self, folder: Path, overwrite: bool) -> None:
        """Check that a folder of tiles may be written, before a former one is put aside.

        Raises:
            FileExistsError: If it exists, without `overwrite`.
            ValueError: If it has files of the user.
        """
        from ..rasters.cutting import check_folder  # needs the extra `raster`

        check_folder(folder, overwrite)

    def cut(self, folder: Path, cfg: Config) -> "Tiles":
        """Cut the raster into a folder of tiles for the model of a config.

        Raises:
            ValueError: As `cut_raster`.
        """
        from ..rasters.cutting import cut_raster
        from ..rasters.labels import LabelFile
        from ..rasters.settings import resolve_settings

        reading = dict(self.reading)
        if self.whole:
            reading["tile"] = TILE
        return cut_raster(
            self.path,
            LabelFile(self.labels, **self.label_options),
            folder,
            resolve_settings(cfg, reading, trains=True),
            is_detector=cfg.default_scope == "mmdet",
            aoi=self.aoi,
            hold_out=self.hold_out,
            whole=self.whole,
            model_classes=configured_classes(cfg) or (),
        )


def adapt_to_tiles(values: dict[str, Any], cfg: Config, tiles: "Tiles") -> None:
    """Adapt the values from `adapt` to tiles of a raster.

    The model takes the bands of the tiles. What a tile's edge leaves of an object counts neither
    as an object nor as background, if it is a small part.
    """
    values["raster"] = tiles.settings
    tile = tiles.settings["tile"]
    values["large"] = dict(scale=median_scale(cfg, [(tile, tile)]), pixel_size=tiles.pixel_size)
    model = values["model"]
    for assigner in iter_parts(model.get("train_cfg")):
        if "ignore_iof_thr" in assigner:  # a part of an object is iscrowd, see `write_objects`
            assigner["ignore_iof_thr"] = _IGNORED_OVERLAP
    if tiles.statistics is None:  # they are images of three bands and 8 bits
        return
    has_other_bands = ModelInput(cfg).raster_step is None
    if has_other_bands:
        model["backbone"]["in_channels"] = len(tiles.settings["bands"])
        # The pipeline normalises the bands.
        keys = dict(mean=None, std=None, bgr_to_rgb=False, rgb_to_bgr=False)
        model["data_preprocessor"].update(keys)
    for name in ("train_pipeline", "test_pipeline"):
        steps = [
            dict(type="LoadRasterFromFile") if type_name(step) in _LOADING else step
            for step in values[name]
        ]
        if has_other_bands:
            mean, std = tiles.statistics
            # The distortion needs three channels.
            steps = [step for step in steps if type_name(step) != "PhotoMetricDistortion"]
            steps.insert(-1, dict(type="Normalize", mean=mean, std=std, to_rgb=False))
        values[name] = steps
