"""`train --from MODEL --data RASTERS --labels LABELS`: the tiles, and a config for them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..rasters.options import LOADING
from ..utils.configs import ModelInput, read_config, type_name
from ..weights.zoo import find_config
from .model import difference

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

# Share of a proposal, above which it counts neither as object nor as background.
_IGNORED_OVERLAP = 0.5


def cut(options: argparse.Namespace, config: Path) -> "Tiles":
    """Cut rasters into NAME-tiles beside a config that is to be written.

    Raises:
        FileExistsError: If the config or the folder exists.
        ValueError, OSError, RuntimeError: As `cut_rasters`.
    """
    from ..rasters.cutting import cut_rasters  # needs the extra `raster`

    if config.exists():
        raise FileExistsError(f"{config} exists: train it, or name another by --config")
    cfg = read_config(find_config(options.model))
    model_input = ModelInput(cfg)
    trained = dict(cfg.get("raster") or {})
    loading = {name: getattr(options, name) for name in LOADING}
    if loading["bands"] is None:
        step = model_input.raster_step or {}
        loading["bands"] = trained.get("bands") or step.get("bands")
    tile = options.tile or trained.get("tile") or model_input.side
    if tile is None:
        raise ValueError(f"{options.model} does not state the size of its images: give --tile")
    # Three of a few bands become colors, and one becomes gray. Others keep their values.
    count = len(loading["bands"] or [1, 2, 3])
    raw = model_input.raster_step is not None or count not in (1, 3)
    if raw and (loading["bounds"] or loading["percentiles"]):
        raise ValueError("--bounds, --percentiles: tiles of other bands than three have no scale")
    return cut_rasters(
        options.data,
        options.labels,
        config.resolve().with_name(f"{config.stem}-tiles"),
        is_detector=cfg.default_scope == "mmdet",
        channels=model_input.bands or (count if raw else 3),
        raw=raw,
        tile=tile,
        overlap=options.overlap,
        aoi=options.aoi,
        class_column=options.class_column,
        hold_out=not options.no_val,
        **loading,
    )


def adapt_model(cfg: Config, changes: dict[str, Any], tiles: "Tiles") -> dict[str, Any]:
    """Return the changes of a model's config, also for tiles: their bands, and objects that a
    tile's edge cuts to a small part, which count neither as objects nor as background.
    """
    changed = cfg.model.to_dict()
    _ignore_parts(changed.get("train_cfg"))
    if has_other_bands(cfg, tiles):
        bands = len(tiles.settings["bands"])
        changed["backbone"]["in_channels"] = bands
        order = {
            key: False
            for key in ("bgr_to_rgb", "rgb_to_bgr")
            if key in changed["data_preprocessor"]
        }
        changed["data_preprocessor"] |= dict(mean=None, std=None) | order
    merged = dict(changes)
    for key, value in difference(cfg.model.to_dict(), changed).items():
        merged[key] = merged.get(key, {}) | value
    return merged


def has_other_bands(cfg: Config, tiles: "Tiles") -> bool:
    """Return whether tiles have other bands than the model's images, whose stem is to be filled."""
    return tiles.statistics is not None and ModelInput(cfg).raster_step is None


def adapt_steps(steps: Sequence[Any], cfg: Config, tiles: "Tiles") -> list[Any]:
    """Return the steps of a pipeline that loads tiles of any bands."""
    if tiles.statistics is None:
        return list(steps)
    adapted: list[Any] = []
    for step in steps:
        if not isinstance(step, dict):
            adapted.append(adapt_steps(step, cfg, tiles))
            continue
        name = type_name(step)
        if name in ("LoadImageFromFile", "LoadRasterFromFile"):
            adapted.append(dict(type="LoadRasterFromFile"))
        elif not has_other_bands(cfg, tiles):
            adapted.append(step)
        elif name.startswith("Pack"):
            mean, std = tiles.statistics
            adapted += [dict(type="Normalize", mean=mean, std=std, to_rgb=False), step]
        elif name != "PhotoMetricDistortion":  # which needs three channels
            inner = step.get("transforms")
            adapted.append(
                step | dict(transforms=adapt_steps(inner, cfg, tiles)) if inner else step
            )
    return adapted


def _ignore_parts(part: Any) -> None:
    """Let all assigners of a training ignore what lies on ignored objects."""
    if isinstance(part, list):
        for element in part:
            _ignore_parts(element)
    elif isinstance(part, dict):
        for value in part.values():
            _ignore_parts(value)
        if "ignore_iof_thr" in part:
            part["ignore_iof_thr"] = _IGNORED_OVERLAP
