"""How a raster is read and tiled, decided in one place for training, prediction and export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.config import Config

from ..prediction.tiles import overlap_of_tiles
from ..utils.configs import ModelInput

LOADING = ("gsd", "bands", "bounds", "percentiles", "nodata")
"""Options of `Raster` that a user may give."""
TILING = ("tile", "overlap")


@dataclass(frozen=True)
class RasterSettings:
    """How rasters are read and tiled.

    Attributes:
        tile, overlap: Side and minimum overlap of tiles in pixels.
        options: Options of `Raster`.
        notes: Lines on options that differ from those of the model's training.
        has_trained_bounds: Whether the bounds are those of the training.
    """

    tile: int
    overlap: int
    options: Mapping[str, Any]
    notes: Sequence[str] = ()
    has_trained_bounds: bool = False


def trained_settings(cfg: Config) -> dict[str, Any]:
    """Return how the rasters were read on which a model was trained, as far as its config says:
    its `raster = dict(...)`, or else the bands of the step that loads rasters.
    """
    step = ModelInput(cfg).raster_step or {}
    bands = dict(bands=step["bands"]) if step.get("bands") else {}
    return bands | dict(cfg.get("raster") or {})


def resolve_settings(
    cfg: Config,
    command: Mapping[str, Any],
    tiling: tuple[int | None, int | None] = (None, None),
    trains: bool = False,
) -> RasterSettings:
    """Decide how rasters are read for a model.

    An option of the command comes first, then the model's training. What neither states is the
    raster's own. A training takes the bands and the tiles of the model it starts from, but the
    scale and the size of pixels of the new rasters.

    Args:
        command: Values of LOADING and TILING that a user gave. None stands for no value.
        tiling: Tile and overlap of a predictor, which come before those of the training.
        trains: Whether tiles to train on are read, for which the model may change its bands.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If an option does not match the model, or nothing states the tile.
    """
    known = (*LOADING, *TILING)
    unknown = set(command) - set(known)
    if unknown:
        raise TypeError(f"unknown options {', '.join(sorted(unknown))}: give {', '.join(known)}")
    chosen = {name: value for name, value in command.items() if value is not None}
    trained = trained_settings(cfg)
    inherited = ("bands",) if trains else LOADING
    reading = {name: trained[name] for name in inherited if trained.get(name) is not None}
    if "percentiles" in chosen:  # they replace the bounds
        reading.pop("bounds", None)
    reading |= {name: chosen[name] for name in LOADING if name in chosen}
    model_input = ModelInput(cfg)
    # Three bands become colors, and one becomes gray. Other bands keep their values.
    count = len(reading.get("bands", (1, 2, 3)))
    raw = model_input.raster_step is not None or (trains and count not in (1, 3))
    if raw and not chosen.keys().isdisjoint(("bounds", "percentiles")):
        raise ValueError("--bounds, --percentiles: stored bands have no scale, leave them out")
    tile, overlap = _resolve_tiles(chosen, tiling, trained, model_input.side)
    return RasterSettings(
        tile,
        overlap,
        dict(channels=model_input.bands or (count if raw else 3), raw=raw) | reading,
        notes=() if trains else _list_changes(chosen, trained),
        has_trained_bounds="bounds" in reading and "bounds" not in chosen,
    )


def _resolve_tiles(
    chosen: Mapping[str, Any],
    tiling: tuple[int | None, int | None],
    trained: Mapping[str, Any],
    side: int | None,
) -> tuple[int, int]:
    """Return side and minimum overlap of tiles: of the command, the predictor, the training or the
    config's images. Without --overlap, both have one source.
    """
    of_training = trained.get("tile"), trained.get("overlap")
    for tile, overlap in ((chosen.get("tile"), None), tiling, of_training, (side, None)):
        if tile is not None:
            return tile, overlap_of_tiles(tile, chosen.get("overlap", overlap))
    fix = "give --tile PIXELS, as in the training"
    raise ValueError(f"the config does not state the size of its images: {fix}")


def _list_changes(chosen: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    """Describe each option that has another value than in the training."""
    notes = []
    for name, value in chosen.items():
        of_training = trained.get(name)
        if of_training is not None and not np.array_equal(value, of_training):
            shown = " ".join(map(str, np.ravel(value)))
            notes.append(f"--{name} {shown}: the model was trained with {of_training}")
    return notes
