"""What a finished result says of its making: a later call recognises it, and a user reads it."""

import json
from pathlib import Path
from typing import Any

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
    if out.suffix == ".gpkg":
        import pyogrio

        if LAYER not in pyogrio.list_layers(out)[:, 0]:
            return {}
        metadata = pyogrio.read_info(out, layer=LAYER)["layer_metadata"] or {}
    else:
        with gdal(out), open_raster(out) as file:
            metadata = file.tags()
    return json.loads(metadata.get(MADE_FROM, "{}"))
