"""Checks of photos by their headers: they exist, and are loaded as they are labelled."""

import os
from collections.abc import Mapping
from typing import Any

from ..datasets.headers import read_headers
from ..utils.config_parts import type_name
from ..utils.images import reads_all_bands
from .findings import Findings, listed

_TURN = (
    "give photos and labels one size; mmcv turns photos as EXIF says: if the labels were drawn "
    "over photos as stored, set color_type='color_ignore_orientation' in each LoadImageFromFile"
)


def check_photos(
    code: str, step: dict[str, Any], labels: Mapping[str, tuple[int, int]]
) -> Findings:
    """Check that photos exist, that the pipeline loads all that they hold, and their sizes.

    Headers of photos are read only if mmcv loads the photos, since other steps may change them.

    Args:
        code: Of a wrong size: D511 for maps, D315 for a json.
        step: The step of the pipeline that loads the photos.
        labels: Width and height of the labels of each photo.

    Raises:
        ValueError: If mmcv would drop bands or pages of a TIFF.
    """
    missing = [path for path in labels if not os.path.isfile(path)]
    problem = f"of {len(labels)} images are missing"
    fix = "add them, write / for the \\ of Windows in their names, or name their folder: "
    fix += "images of a fine-tuning, data_prefix of a config"
    yield from listed("FAIL", "D314", missing, problem, fix)
    color_type = step.get("color_type", "color")
    is_whole = reads_all_bands(color_type, step.get("imdecode_backend"))
    if is_whole or type_name(step) != "LoadImageFromFile":
        return
    wrong = []
    deep = []
    paths = sorted(set(labels).difference(missing))
    for path, header in zip(paths, read_headers(paths), strict=True):
        if header.dropped:
            raise ValueError(f"{path} has {header.dropped}")
        width, height = labels[path]
        sizes = [(width, height)]
        if color_type.endswith("ignore_orientation"):  # the header has the size after the turn
            sizes.append((height, width))
        if header[:2] not in sizes:
            loaded = f"{header.width} x {header.height} loaded"
            wrong.append(f"{path} ({width} x {height} in its labels, {loaded})")
        if header.is_deep:
            deep.append(path)
    kept = "Pillow clips" if step.get("imdecode_backend") == "pillow" else "mmcv keeps the upper 8"
    problem = f"images have more than 8 bits, and {kept}"
    yield from listed("note", "D315", deep, problem, "docs/bands.md, if their values are low")
    yield from listed("FAIL", code, wrong, "images have another size than their labels", _TURN)
