"""`train --from MODEL --data RASTER --labels LABELS`: the tiles, and a config for them."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..datasets import Source
from ..rasters.settings import READING
from ..utils.configs import ModelInput, tested_metainfo, type_name
from .model import Adapted, iter_dicts, map_steps

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

# Share of a proposal above which it counts neither as object nor as background.
_IGNORED_OVERLAP = 0.5


def _tile_folder(config: Path) -> Path:
    return config.resolve().with_name(f"{config.stem}-tiles")


def tile_source(config: Path, is_detector: bool) -> Source:
    """Return the files of tiles as those of a user, in NAME-tiles beside the config NAME.py."""
    folder = _tile_folder(config)
    val = folder / "val.json"
    if not is_detector:
        return Source(folder)
    return Source(folder / "train.json", val if val.exists() else None)


def cut(options: argparse.Namespace, config: Path, cfg: Config) -> "Tiles":
    """Cut a labelled raster into the tiles of a config that is to be written, for the model of
    `cfg`. Raise as `cut_raster`.
    """
    from ..rasters.cutting import cut_raster  # needs the extra `raster`
    from ..rasters.labels import LabelFile
    from ..rasters.settings import resolve_settings

    command = {name: getattr(options, name) for name in READING}
    columns = options.class_column, options.class_name, options.layer
    return cut_raster(
        options.data,
        LabelFile(options.labels, *columns),
        _tile_folder(config),
        resolve_settings(cfg, command, trains=True),
        is_detector=cfg.default_scope == "mmdet",
        aoi=options.aoi,
        hold_out=not options.no_val,
        overwrite=bool(options.overwrite),
        model_classes=tested_metainfo(cfg)["classes"],
    )


def has_other_bands(cfg: Config, tiles: "Tiles") -> bool:
    """Return whether tiles have other bands than the model's images, whose stem is to be filled."""
    return tiles.statistics is not None and ModelInput(cfg).raster_step is None


def adapt_to_tiles(adapted: Adapted, tiles: "Tiles") -> None:
    """Adapt a model to tiles: their bands, and objects that a tile's edge cuts to a small part,
    which count neither as objects nor as background.
    """
    for assigner in iter_dicts(adapted.model.get("train_cfg")):
        if "ignore_iof_thr" in assigner:  # a part of an object is iscrowd, see `write_object_tile`
            assigner["ignore_iof_thr"] = _IGNORED_OVERLAP
    if tiles.statistics is None:  # they are images of three bands and 8 bits
        return
    statistics = None
    if has_other_bands(adapted.cfg, tiles):
        _set_bands(adapted.model, len(tiles.settings["bands"]))
        statistics = tiles.statistics
    adapt = partial(_load_bands, statistics=statistics)
    adapted.pipelines = [map_steps(steps, adapt) for steps in adapted.pipelines]


def _set_bands(model: dict[str, Any], bands: int) -> None:
    """Set the number of bands of a model, whose pipeline normalises them."""
    model["backbone"]["in_channels"] = bands
    preprocessor = model["data_preprocessor"]
    preprocessor.update(mean=None, std=None)
    for key in ("bgr_to_rgb", "rgb_to_bgr"):
        if key in preprocessor:
            preprocessor[key] = False


def _load_bands(step: dict, statistics: tuple[list[float], list[float]] | None) -> list[dict]:
    """Adapt a step to bands, which the last step normalises by means and standard deviations, if
    the model does not.
    """
    name = type_name(step)
    if name in ("LoadImageFromFile", "LoadRasterFromFile"):
        return [dict(type="LoadRasterFromFile")]
    if statistics is not None and name == "PhotoMetricDistortion":  # which needs three channels
        return []
    if statistics is not None and name.startswith("Pack"):
        mean, std = statistics
        return [dict(type="Normalize", mean=mean, std=std, to_rgb=False), step]
    return [step]
