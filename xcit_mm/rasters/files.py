"""Files of a raster's result, and what the result says of its making."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..utils.errors import ArgumentError
from ..utils.folders import find_change
from .gdal import open_raster

MADE_FROM = "MADE_FROM"
"""Key of what a result was made from in the metadata of its file: a JSON."""
LAYER = "objects"
"""Name of the layer of a table."""


def rows_folder(out: Path) -> Path:
    """Return the folder of the rows and the unfinished files of a result."""
    return out.with_name(f"{out.name}.parts")


def check_finished(out: Path, settings: Mapping[str, Any]) -> None:
    """Check that a finished result was made with these settings.

    Raises:
        ArgumentError: If it was made with others, or by another program, which does not say what it
            was made from. The message names the first difference.
        OSError, RuntimeError: If it is no file of GDAL.
    """
    if out.suffix.lower() == ".gpkg":
        import pyogrio

        metadata = pyogrio.read_info(out, layer=LAYER)["layer_metadata"] or {}
    else:
        with open_raster(out) as file:
            metadata = file.tags()
    made_from = json.loads(metadata.get(MADE_FROM, "{}"))
    change = find_change({name: made_from.get(name) for name in settings}, settings)
    if change:
        raise ArgumentError(
            "out", f"{out} is of another run: {change}: give another, or set overwrite"
        )
