"""Checks of photos, the headers of all and the pixels of a sample, against the labels."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS

from ..datasets.old_headers import ImageInfo, read_infos
from ..utils.configs import type_name
from ..utils.errors import reason
from ..utils.images import TIFF_SUFFIXES, reads_all_bands
from .findings import Finding, listed

Shape = tuple[int, int]  # height and width
_SAMPLE = 32
_SUSPECTS = 500  # files that only the pipeline may be able to read
_REPLACE = "replace or remove these files"
_TURN = "remove the orientation from the photos' EXIF, or turn the labels as EXIF turns the photos"
_STORED = f"color_type='color_ignore_orientation' in LoadImageFromFile of all pipelines, or {_TURN}"


def _sample(items: Sequence, size: int = _SAMPLE) -> list:
    """Return some items, from the first to the last."""
    indices = np.linspace(0, len(items) - 1, min(size, len(items))).astype(int)
    return [items[index] for index in indices]


class Photos:
    """The photos of a data set, which a step of the pipeline loads. Own data have mmcv's step.

    Attributes:
        is_turned: Whether the step turns photos as EXIF says.
        infos: Headers by path, of photos that exist. Empty if the step is not LoadImageFromFile.
        shapes: Height and width as the step loads them, by path, as far as they are known.
    """

    def __init__(self, paths: Sequence[str], step: dict[str, Any] | None = None) -> None:
        self.paths = paths
        self.present = [path for path in paths if os.path.isfile(path)]
        self.is_own = step is None
        self.step = step or dict(type="LoadImageFromFile")
        self.color_type = self.step.get("color_type", "color")
        self.is_turned = self.color_type in ("color", "grayscale")
        is_of_mmcv = type_name(self.step) == "LoadImageFromFile"
        self.infos = read_infos(self.present) if is_of_mmcv else {}
        self.shapes = {
            path: info.shape(self.is_turned) for path, info in self.infos.items() if info.width
        }


def check_photos(photos: Photos) -> Iterator[Finding]:
    """Check that photos exist, and that the pipeline loads all that they hold."""
    missing = sorted({*photos.paths}.difference(photos.present))
    problem = f"of {len(photos.paths)} images are missing"
    yield from listed("FAIL", "D314", missing, problem, "add them, or correct data_prefix")
    problems = _find_lost(photos)
    filled = {}
    load = TRANSFORMS.build(photos.step)
    suspects = [path for path, info in photos.infos.items() if info.problem]
    for path in dict.fromkeys([*_sample(suspects, _SUSPECTS), *_sample(photos.present)]):
        info = photos.infos.get(path, ImageInfo())
        try:
            photos.shapes.setdefault(path, tuple(load(dict(img_path=path))["img_shape"]))
        except Exception as error:  # every decoder has its own exceptions
            problems[path] = f"({info.problem or reason(error)})"
        else:
            # Without a width, only the pipeline knows the format of the file.
            if info.problem and info.width:
                filled[path] = f"({info.problem})"
    for level, named, problem, fix in (
        ("FAIL", problems, "images cannot be used", f"{_REPLACE}; of bands: docs/bands.md"),
        ("note", filled, "images are damaged, and a part is filled", _REPLACE),
    ):
        names = [f"{path} {cause}" for path, cause in named.items()]
        yield from listed(level, "D315", names, problem, fix)


def _find_lost(photos: Photos) -> dict[str, str]:
    """Return why photos would lose bands, or own photos bits, by path."""
    if reads_all_bands(photos.color_type, photos.step.get("imdecode_backend")):
        return {}
    infos = photos.infos.items()
    lost = {path: f"has {info.raster_bands} bands" for path, info in infos if info.raster_bands}
    if photos.is_own:  # `train --from` refuses each TIFF of more than 8 bits
        for path, info in infos:
            if info.bits > 8 and path not in lost and path.lower().endswith(TIFF_SUFFIXES):
                lost[path] = f"has {info.bits} bits"
    return lost


def check_sizes(
    code: str, photos: Photos, labels: Iterable[tuple[str, str, Shape]]
) -> Iterator[Finding]:
    """Compare the sizes of photos, as far as they are known, with those of their labels.

    Args:
        code: D511 for maps, D315 for sizes that label files state.
        labels: Path of a photo, path of its map or its own again, height and width of its labels.
    """
    turned = []
    wrong = []
    for photo, path, shape in labels:
        loaded = photos.shapes.get(photo, shape)
        if shape == loaded:
            continue
        sizes = f"{shape[1]} x {shape[0]} in its labels, {loaded[1]} x {loaded[0]} in the photo"
        if shape == photos.infos.get(photo, ImageInfo()).shape(is_turned=False):
            wrong.append(f"{path} ({sizes}: drawn as stored, and turned by EXIF)")
        elif shape == loaded[::-1] and code == "D315":
            turned.append(f"{path} ({sizes})")
        else:
            wrong.append(f"{path} ({sizes})")
    fix = "exchange width and height in the labels"
    yield from listed("note", code, turned, "images are turned", fix)
    stored = _TURN if photos.is_own else _STORED  # no config is written yet
    fix = f"give the labels and the photos the same size. Drawn as stored: {stored}"
    yield from listed("FAIL", code, wrong, "images have another size than their labels", fix)
