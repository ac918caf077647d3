"""Checks of photos: the headers of all, and the pixels of a sample."""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import DATASETS, TRANSFORMS

from ..utils.configs import loading_step, type_name
from ..utils.errors import reason
from ..utils.images import read_image
from .files import Facts, read_facts
from .findings import Finding, listed

Shape = tuple[int, int]  # height and width
SAMPLE = 32
_SUSPECTS = 500  # files that only the pipeline may be able to read
STORED = "color_type='color_ignore_orientation' in LoadImageFromFile of all pipelines"


def build_dataset(dataset: dict) -> Any:
    """Build a data set without its pipeline. pycocotools prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})


def sample(items: Sequence, size: int = SAMPLE) -> list:
    """Return some items, from the first to the last."""
    places = np.linspace(0, len(items) - 1, min(size, len(items))).astype(int)
    return [items[place] for place in places]


class Photos:
    """The photos of a data set.

    Attributes:
        present: Paths of those that exist.
        color_type: As in LoadImageFromFile.
        is_turned: Whether the pipeline turns them as EXIF says.
        facts: What the headers say of each that exists. Empty if the pipeline does not load them by
            mmcv's LoadImageFromFile.
        turned: Those that EXIF turns.
    """

    def __init__(self, dataset: dict, paths: Sequence[str]) -> None:
        self.paths = paths
        self.step = loading_step(dataset.get("pipeline", [])) or dict(type="LoadImageFromFile")
        self.present = [path for path in paths if os.path.isfile(path)]
        is_plain = type_name(self.step) == "LoadImageFromFile"
        self.color_type = self.step.get("color_type", "color")
        self.is_turned = self.color_type in ("color", "grayscale")
        self.facts: Mapping[str, Facts] = read_facts(self.present) if is_plain else {}
        self.turned = {path for path, facts in self.facts.items() if facts.orientation > 1}

    def shape(self, path: str) -> Shape | None:
        """Return height and width as the pipeline loads a photo, None if they are unknown."""
        facts = self.facts.get(path)
        return facts.shape(self.is_turned) if facts and facts.width else None

    def load_sample(self) -> Iterator[tuple[str, Shape | str]]:
        """Yield some paths, each with height and width as loaded, or why it cannot be loaded.

        Files with a broken header are among them.
        """
        load = TRANSFORMS.build(self.step)
        suspects = [path for path, facts in self.facts.items() if facts.problem]
        for path in dict.fromkeys([*sample(suspects, _SUSPECTS), *sample(self.present)]):
            try:
                yield path, tuple(load(dict(img_path=path))["img_shape"])
            except Exception as error:  # every decoder has its own exceptions
                problem = self.facts[path].problem if path in self.facts else ""
                yield path, problem or reason(error)


def check_images(photos: Photos, shapes: Mapping[str, Shape]) -> Iterator[Finding]:
    """Check that photos exist, can be read, and are as large as the json says.

    Args:
        shapes: Height and width by path, if a json states them.
    """
    missing = [path for path in photos.paths if not os.path.isfile(path)]
    problem = f"of {len(photos.paths)} images are missing"
    yield from listed("FAIL", "D314", missing, problem, "add these files, or correct data_prefix")
    loaded = dict(photos.load_sample())
    unreadable = [f"{path} ({why})" for path, why in loaded.items() if isinstance(why, str)]
    fix = "replace or remove these files"
    yield from listed("FAIL", "D315", unreadable, "images cannot be read", fix)
    cut_off = [
        f"{path} ({facts.problem})"
        for path, facts in photos.facts.items()
        if facts.problem and facts.width and isinstance(loaded.get(path), tuple)
    ]
    yield from listed("note", "D315", cut_off, "images are damaged, and a part is filled", fix)
    fix = "scale the values to 16 bits, or LoadRasterFromFile (docs/bands.md)"
    yield from listed("FAIL", "D315", _find_dark(photos), "images would be nearly black", fix)
    yield from _check_sizes(photos, loaded, shapes)


def _find_dark(photos: Photos) -> list[str]:
    """List photos of 16 bits that become black, because mmcv keeps the upper 8 bits."""
    dark: list[str] = []
    if not photos.color_type.startswith("color"):
        return dark
    deep = [path for path, facts in photos.facts.items() if facts.bits > 8]
    for path in sample(deep):
        try:
            read_image(path)
        except ValueError as error:
            dark.append(f"{path} ({error})")
    return dark


def _check_sizes(
    photos: Photos, loaded: Mapping[str, Shape | str], shapes: Mapping[str, Shape]
) -> Iterator[Finding]:
    """Compare the photos with the sizes in a json."""
    turned = []
    wrong = []
    for path, expected in shapes.items():
        shape = photos.shape(path) or loaded.get(path, expected)
        difference = f"{path} has {shape} pixels, {expected} in the json"
        if shape == expected[::-1] and shape != expected:
            turned.append(difference)
        elif shape != expected and not isinstance(shape, str):
            wrong.append(difference)
    fix = f"exchange width and height in the json, or {STORED} if boxes fit the stored photo"
    yield from listed("note", "D315", turned, "images are turned", fix)
    fix = "give the json and the photos the same size"
    yield from listed("FAIL", "D315", wrong, "images have another size", fix)
