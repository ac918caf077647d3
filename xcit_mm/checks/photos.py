"""Checks of photos: the headers of all, and the pixels of a sample."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS

from ..datasets.headers import ImageInfo, read_infos
from ..utils.configs import type_name
from ..utils.errors import reason
from ..utils.images import read_image, reads_all_bands
from .findings import Finding, listed

Shape = tuple[int, int]  # height and width
SAMPLE = 32
_SUSPECTS = 500  # files that only the pipeline may be able to read
_BANDS = "LoadRasterFromFile (docs/bands.md)"
STORED = (
    "color_type='color_ignore_orientation' in LoadImageFromFile of all pipelines, or remove the "
    "orientation from the photos' EXIF"
)


def sample(items: Sequence, size: int = SAMPLE) -> list:
    """Return some items, from the first to the last."""
    places = np.linspace(0, len(items) - 1, min(size, len(items))).astype(int)
    return [items[place] for place in places]


def by_width(shape: Shape) -> str:
    """Return a size as people write it: width x height."""
    height, width = shape
    return f"{width} x {height}"


class Photos:
    """The photos of a data set.

    Attributes:
        present: Paths of the photos that exist.
        step: Config of the step of the pipeline that loads them.
        is_turned: Whether this step turns photos as EXIF says.
        infos: Properties of the photos that exist, by path. Empty if the step is not mmcv's
            LoadImageFromFile.
        turned: Paths of the photos that EXIF turns, if the step does.
    """

    def __init__(self, paths: Sequence[str], step: dict[str, Any] | None = None) -> None:
        self.paths = paths
        self.step = step or dict(type="LoadImageFromFile")
        self.color_type = self.step.get("color_type", "color")
        self.is_turned = self.color_type in ("color", "grayscale")
        self.present = [path for path in paths if os.path.isfile(path)]
        self.infos: Mapping[str, ImageInfo] = {}
        if type_name(self.step) == "LoadImageFromFile":
            self.infos = read_infos(self.present)
        self.turned = {
            path for path, info in self.infos.items() if self.is_turned and info.orientation > 1
        }

    def shape(self, path: str) -> Shape | None:
        """Return height and width as the pipeline loads a photo, None if they are unknown."""
        info = self.infos.get(path)
        return info.shape(self.is_turned) if info and info.width else None

    def is_stored_shape(self, path: str, shape: Shape) -> bool:
        """Return whether a photo is stored in a shape, but loaded in another."""
        return path in self.turned and shape == self.infos[path].shape(False) != self.shape(path)

    def load_sample(self) -> tuple[dict[str, Shape], dict[str, str]]:
        """Load some photos, and those with a problem, as the pipeline does.

        Returns:
            Height and width of the loaded photos by path, and why others cannot be loaded.
        """
        load = TRANSFORMS.build(self.step)
        suspects = [path for path, info in self.infos.items() if info.problem]
        shapes = {}
        problems = {}
        for path in dict.fromkeys([*sample(suspects, _SUSPECTS), *sample(self.present)]):
            try:
                shapes[path] = tuple(load(dict(img_path=path))["img_shape"])
            except Exception as error:  # every decoder has its own exceptions
                info = self.infos.get(path, ImageInfo())
                problems[path] = info.problem or reason(error)
        return shapes, problems


def check_photos(photos: Photos, shapes: Mapping[str, Shape]) -> Iterator[Finding]:
    """Check that photos exist, can be read, and are as large as their labels say.

    Args:
        shapes: Height and width by path, if labels state them.
    """
    missing = [path for path in photos.paths if not os.path.isfile(path)]
    problem = f"of {len(photos.paths)} images are missing"
    yield from listed("FAIL", "D314", missing, problem, "add these files, or correct data_prefix")
    yield from listed("FAIL", "D315", _find_dropped(photos), "images would lose bands", _BANDS)
    loaded, problems = photos.load_sample()
    unreadable = [f"{path} ({problem})" for path, problem in problems.items()]
    fix = "replace or remove these files"
    yield from listed("FAIL", "D315", unreadable, "images cannot be read", fix)
    # Without a width, only the pipeline knows the format of the file.
    filled = [
        f"{path} ({info.problem})"
        for path, info in photos.infos.items()
        if info.problem and info.width and path in loaded
    ]
    yield from listed("note", "D315", filled, "images are damaged, and a part is filled", fix)
    fix = f"scale the values to 16 bits, or {_BANDS}"
    yield from listed("FAIL", "D315", _find_dark(photos), "images would be nearly black", fix)
    yield from _check_sizes(photos, loaded, shapes)


def _find_dropped(photos: Photos) -> list[str]:
    """List photos of whose bands mmcv would drop some."""
    if reads_all_bands(photos.color_type, photos.step.get("imdecode_backend")):
        return []
    bands = {path: info.dropped_bands for path, info in photos.infos.items()}
    return [f"{path} has {count} bands" for path, count in bands.items() if count]


def _find_dark(photos: Photos) -> list[str]:
    """List photos of 16 bits that become black, because mmcv keeps the upper 8 bits."""
    dark: list[str] = []
    if not photos.color_type.startswith("color"):
        return dark
    infos = photos.infos.items()
    deep = [path for path, info in infos if info.bits > 8 and not info.dropped_bands]
    for path in sample(deep):
        try:
            read_image(path)
        except ValueError as error:
            dark.append(f"{path} ({error})")
    return dark


def _check_sizes(
    photos: Photos, loaded: Mapping[str, Shape], shapes: Mapping[str, Shape]
) -> Iterator[Finding]:
    """Compare the photos with stated sizes. Sizes of some photos are known only when they are
    loaded.
    """
    stored = []
    turned = []
    wrong = []
    for path, expected in shapes.items():
        shape = photos.shape(path) or loaded.get(path, expected)
        difference = f"{path} has {by_width(shape)} pixels, {by_width(expected)} in its labels"
        if shape == expected:
            continue
        if photos.is_stored_shape(path, expected):
            stored.append(difference)
        elif shape == expected[::-1]:
            turned.append(difference)
        else:
            wrong.append(difference)
    problem = "images were labelled as stored, but mmcv turns them by EXIF"
    exchange = "exchange width and height in the labels"
    fix = f"{STORED}; {exchange} if boxes fit the turned photo"
    yield from listed("FAIL", "D315", stored, problem, fix)
    yield from listed("note", "D315", turned, "images are turned", exchange)
    fix = "give the labels and the photos the same size"
    yield from listed("FAIL", "D315", wrong, "images have another size", fix)
