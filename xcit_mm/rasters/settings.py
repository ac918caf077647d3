"""How a raster is read and tiled, decided in one place for training, prediction and export."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from ..prediction.tiles import overlap_of_tiles
from ..utils.configs import ModelInput

READING = ("bands", "bounds", "nodata", "tile", "overlap")
"""Options by which a user, or `raster = dict(...)` of a config, says how a raster is read."""


def trained_settings(cfg: Config) -> dict[str, Any]:
    """Return how the raster was read on which a model was trained, as far as its config says: its
    `raster = dict(...)`, or else the bands of the step that loads rasters.
    """
    step = ModelInput(cfg).raster_step or {}
    bands = dict(bands=step["bands"]) if step.get("bands") else {}
    return bands | dict(cfg.get("raster") or {})


def resolve_settings(
    cfg: Config, command: Mapping[str, Any], trains: bool = False
) -> dict[str, Any]:
    """Decide how a raster is read for a model: by the command, else by the model's config. Return
    `tile` and `overlap`, the side and the minimum overlap of tiles in pixels, and options of
    `Raster`.

    Args:
        command: Values of READING that a user gave. None stands for no value.
        trains: Whether tiles to train on are read, for which the model may change its bands.

    Raises:
        ValueError: If an option does not match the model, or nothing states the tile.
    """
    chosen = {name: value for name, value in command.items() if value is not None}
    settings = trained_settings(cfg)
    if "tile" in chosen:
        settings.pop("overlap", None)
    settings |= chosen
    if "tile" not in settings:
        fix = "give --tile PIXELS, the size of the images that the model was trained on"
        raise ValueError(f"the config has no raster = dict(tile=...): {fix}")
    settings["overlap"] = overlap_of_tiles(settings["tile"], settings.get("overlap"))
    model_input = ModelInput(cfg)
    # Three bands become colors, and one becomes gray. Other bands keep their values.
    count = len(settings.get("bands", (1, 2, 3)))
    raw = model_input.raster_step is not None or (trains and count not in (1, 3))
    if raw and "bounds" in settings:
        raise ValueError("--bounds: stored bands have no scale, leave it out")
    channels = model_input.bands or (count if raw else 3)
    return settings | dict(channels=channels, raw=raw)
