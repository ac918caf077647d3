"""What a finished result says of its making: a later call recognises it, and a user reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..utils.errors import ArgumentError
from ..utils.folders import find_change
from .gdal import gdal, open_raster

MADE_FROM = "MADE_FROM"
"""Key of what a result was made from in the metadata of its file: a JSON."""
LAYER = "objects"
"""Name of the layer of a table."""


def read_made_from(out: Path) -> dict[str, Any]:
    """Return what a result was made from. It is empty if another program has written the file.

    Raises:
        OSError, RuntimeError: If GDAL cannot read the file.
    """
    if out.suffix.lower() == ".gpkg":
        import pyogrio

        if LAYER not in pyogrio.list_layers(out)[:, 0]:
            return {}
        metadata = pyogrio.read_info(out, layer=LAYER)["layer_metadata"] or {}
    else:
        with gdal(out), open_raster(out) as file:
            metadata = file.tags()
    return json.loads(metadata.get(MADE_FROM, "{}"))


def check_same(out: Path, made_from: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ArgumentError with the first difference, if a result was made with other settings."""
    change = find_change({name: made_from.get(name) for name in settings}, settings)
    if not made_from:
        change = "another program wrote it"
    if change:
        fix = "give another, or overwrite it"
        raise ArgumentError("out", f"{out} is of another run: {change}: {fix}")
