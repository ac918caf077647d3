"""Checks of image files: the names of all, and the pixels of a sample."""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import DATASETS, TRANSFORMS

from ..utils.configs import loading_step
from ..utils.errors import preview, reason
from .findings import Finding, fail, note

Shape = tuple[int, ...]  # height and width
SAMPLE = 32


def build_dataset(dataset: dict) -> Any:
    """Build a data set without its pipeline. pycocotools prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})


def check_images(dataset: dict, images: Mapping[str, Shape | None]) -> Iterator[Finding]:
    """Check that images exist and are as large as the json says, and that the pipeline reads a
    sample of them.
    """
    missing = [path for path in images if not os.path.isfile(path)]
    if missing:
        text = f"{len(missing)} of {len(images)} images are missing: {preview(missing)}"
        yield fail("D314", text, "add these files, or correct data_prefix")
    step, present = (
        loading_step(dataset.get("pipeline", [])) or dict(type="LoadImageFromFile"),
        set(images) - set(missing),
    )
    wrong, turned = list[str](), list[str]()
    for image, loaded in load_sample(
        step, [dict(img_path=path) for path in images if path in present], wrong
    ):
        path, size, given = image["img_path"], loaded["img_shape"], images[image["img_path"]]
        if given and size != given:
            (turned if size == given[::-1] else wrong).append(
                f"{path} has {size} pixels, {given} in the json"
            )
    if turned:
        yield note(
            "D315", preview(turned), "compare boxes and photo: EXIF turns it, and so does mmcv"
        )
    if wrong:
        yield fail(
            "D315", preview(wrong), "replace these files, and check the rest: this is a sample"
        )


def load_sample(
    step: dict, images: Sequence[dict], unreadable: list[str], size: int = SAMPLE
) -> Iterator[tuple[dict, dict]]:
    """Yield each image of a sample, from the first to the last, and what a step loads. List what is
    unreadable.
    """
    load = TRANSFORMS.build(step)
    for image in (
        images[place]
        for place in np.linspace(0, len(images) - 1, min(size, len(images))).astype(int)
    ):
        try:
            yield image, load(dict(image, seg_fields=[]))
        except Exception as error:  # every decoder has its own exceptions
            unreadable.append(
                f"{image.get('seg_map_path', image['img_path'])} cannot be read ({reason(error)})"
            )
