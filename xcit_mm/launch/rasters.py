"""`train --from MODEL --data RASTER --labels LABELS`: the tiles, and a config for them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..datasets import Source
from ..rasters.settings import READING
from ..utils.configs import ModelInput, type_name
from ..weights.classes import configured_classes
from .model import iter_parts, median_scale

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_LOADING = ("LoadImageFromFile", "LoadRasterFromFile")
# Share of a proposal above which it counts neither as object nor as background.
_IGNORED_OVERLAP = 0.5


def tiles_folder(stem: Path, overwrite: bool | None) -> Path:
    """Return the folder of the tiles of a config, given without its suffix. Raise as `check_folder`
    if it may not be written, which must be known before a former one is put aside.
    """
    from ..rasters.cutting import check_folder  # needs the extra `raster`

    folder = stem.with_name(f"{stem.name}-tiles")
    check_folder(folder, bool(overwrite))
    return folder


def cut(options: argparse.Namespace, folder: Path, cfg: Config) -> "tuple[Source, Tiles]":
    """Cut a labelled raster into a folder of tiles for the model of a config. Return its files as
    those of a user, and what a config says of tiles. Raise as `cut_raster`.
    """
    from ..rasters.cutting import cut_raster  # needs the extra `raster`
    from ..rasters.labels import LabelFile
    from ..rasters.settings import resolve_settings

    command = {name: getattr(options, name) for name in READING}
    is_detector = cfg.default_scope == "mmdet"
    tiles = cut_raster(
        options.data,
        LabelFile(options.labels, options.class_column, options.class_name, options.layer),
        folder,
        resolve_settings(cfg, command, trains=True),
        is_detector=is_detector,
        aoi=options.aoi,
        hold_out=not options.no_val,
        model_classes=configured_classes(cfg) or (),
    )
    if not is_detector:
        return Source(folder), tiles
    val = folder / "val.json"
    return Source(folder / "train.json", val if val.exists() else None), tiles


def adapt_to_tiles(values: dict[str, Any], cfg: Config, tiles: "Tiles") -> None:
    """Adapt the values of `adapt` to tiles: their bands, and objects that a tile's edge cuts to a
    small part, which count neither as objects nor as background.
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
