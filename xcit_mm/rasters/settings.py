"""How a raster is read and tiled, decided in one place for training, prediction and export."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from mmengine.config import Config

from ..utils.errors import ArgumentError
from ..utils.model_input import ModelInput

READING = ("bands", "bounds", "nodata", "tile", "overlap")
"""How a raster is read: options of a user, and keys of `raster = dict(...)` in a config."""
SCALING = "scaling"
"""Key of a config's `raster` for the `Raster.scaling` of a training. Users do not set it."""


def resolve_settings(
    cfg: Config, command: Mapping[str, Any], trains: bool = False
) -> dict[str, Any]:
    """Decide how a raster is read for a model: by the user's options, else by the model's config.

    Args:
        command: What a user gave for READING, as numbers, lists or arrays. None is no value.
        trains: Whether tiles to train on are read. Then the model may change its bands.

    Returns:
        Options of `Raster`, and `tile` and `overlap` in pixels, if they are known.

    Raises:
        ArgumentError: If an option does not match the model, or the tile of a training is not
            known.
    """
    model_input = ModelInput(cfg)
    settings = dict(cfg.get("raster") or {})
    settings.pop(SCALING, None)
    step = model_input.raster_step or {}
    if step.get("bands"):
        settings.setdefault("bands", step["bands"])
    if command.get("tile") is not None:
        settings.pop("overlap", None)
    for name, value in command.items():
        if value is not None:
            settings[name] = np.asarray(value).tolist()
    if trains and "tile" not in settings:
        fix = "give the size of the images that the model was trained on, in pixels"
        raise ArgumentError("tile", f"the config has no raster = dict(tile=...): {fix}")
    # Three bands become colours, and one becomes grey. Other bands keep their values.
    count = len(settings.get("bands", (1, 2, 3)))
    raw = model_input.raster_step is not None or (trains and count not in (1, 3))
    if trains and raw and command.get("bounds") is None:
        settings.pop("bounds", None)  # of the bands that the model had before
    if raw and "bounds" in settings:
        raise ArgumentError("bounds", "the model takes values as stored: leave it out")
    channels = model_input.bands or (count if raw else 3)
    return settings | dict(channels=channels, raw=raw)
