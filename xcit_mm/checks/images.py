"""Checks of image files: the names of all, and the pixels of a sample."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image

from ..utils.configs import loading_step, type_name
from ..utils.errors import preview, reason
from .findings import Finding, fail, note

Shape = tuple[int, ...]  # height and width


def check_images(dataset: dict, images: Mapping[str, Shape | None]) -> Iterator[Finding]:
    """Check that images exist and are as large as the json says, and that the pipeline reads a sample of them."""
    missing = missing_paths(list(images))
    if missing:
        text = f"{len(missing)} of {len(images)} images are missing: {preview(missing)}"
        yield fail("D314", text, "add these files, or correct data_prefix")
    step = loading_step(dataset) or dict(type="LoadImageFromFile")
    wrong: list[str] = []
    turned: list[str] = []
    for path, loaded in load_sample(step, [dict(img_path=path) for path in images if path not in missing]):
        given = images[path]
        if isinstance(loaded, Exception):
            wrong.append(f"{path} cannot be read ({reason(loaded)})")
        elif given and tuple(loaded["img_shape"]) != given:
            shape = tuple(loaded["img_shape"])
            (turned if shape == given[::-1] else wrong).append(f"{path} has {shape} pixels, {given} in the json")
    if turned:
        yield note("D315", preview(turned), "compare boxes and photo: EXIF turns it, and so does mmcv")
    if wrong:
        yield fail("D315", preview(wrong), "replace these files, and check the rest: this is a sample")


def load_sample(step: dict, images: Sequence[dict], size: int = 32) -> Iterator[tuple[str, dict | Exception]]:
    """Yield the path of each image of a sample, from the first to the last, and what a step loads or raises."""
    load = TRANSFORMS.build(step)
    for place in np.linspace(0, len(images) - 1, min(size, len(images))).astype(int):
        try:
            yield images[place]["img_path"], load(dict(images[place], seg_fields=[]))
        except Exception as error:  # every decoder has its own exceptions
            yield images[place]["img_path"], error


def read_header(path: str) -> tuple[Shape, int] | None:
    """Return the shape of an image and the number of its channels, or None if Pillow does not know the format."""
    with contextlib.suppress(OSError), Image.open(path) as image:
        return image.size[::-1], len(image.getbands())
    return None


def pipeline_step(dataset: dict, name: str) -> dict | None:
    """Return the first step of this type in a data set's pipeline."""
    return next((step for step in dataset.get("pipeline", []) if type_name(step) == name), None)


def missing_paths(paths: Sequence[str]) -> dict[str, None]:
    """Return the paths that do not exist, in order. To list a folder once is faster than to test each file."""
    folders = {os.path.dirname(path) for path in paths}
    names = {folder: set(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else set() for folder in folders}
    return dict.fromkeys(path for path in paths if os.path.basename(path) not in names[os.path.dirname(path)])
