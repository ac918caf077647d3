"""Checks of image files, of which a sample is read."""

import os
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS
from torch import Tensor

from ..utils.configs import loading_step, normalize_step, part_class, type_name
from ..utils.errors import preview, reason
from .findings import Finding, fail, note

SAMPLE_SIZE = 32  # images of a data set to read


Shape = tuple[int, ...]  # height and width


def check_images(dataset: dict, images: Sequence[dict]) -> Generator[Finding, None, dict[str, Shape]]:
    """Check that images exist, and that the pipeline reads a sample of them with their `shape`.

    Returns:
        The shape of each image of the sample, by path.
    """
    missing = missing_paths([image["img_path"] for image in images])
    if missing:
        text = f"{len(missing)} of {len(images)} images are missing: {preview(missing)}"
        yield fail("D314", text, "add these files, or correct data_prefix")
    step = loading_step(dataset) or dict(type="LoadImageFromFile")
    wrong: list[str] = []
    turned: list[str] = []
    shapes: dict[str, Shape] = {}
    for image, loaded in load_each(step, [i for i in sample_evenly(images) if i["img_path"] not in missing]):
        if isinstance(loaded, Exception):
            wrong.append(f"{image['img_path']} cannot be read ({reason(loaded)})")
        else:
            shape = shapes[image["img_path"]] = tuple(loaded["img_shape"])
            given = tuple(image.get("shape", shape))
            if shape != given:
                differing = f"{image['img_path']} has {shape} pixels, {given} in the json"
                (turned if shape == given[::-1] else wrong).append(differing)
    if turned:
        yield note("D318", preview(turned), "compare boxes and photo: EXIF turns it, and so does mmcv")
    if wrong:
        yield fail("D315", preview(wrong), "replace these files, and check the rest: this is a sample")
    return shapes


def check_bands(dataset: dict, image: dict, channels: int) -> Iterator[Finding]:
    """Check that the pipeline gives a readable image of the data set as many channels as the model takes."""
    pipeline = list(dataset.get("pipeline", []))
    normalize = normalize_step(pipeline)
    if normalize:  # it raises an error without the number of bands
        pipeline.remove(normalize)
    try:
        found = Compose(pipeline)(dict(image, seg_fields=[]))
    except Exception as error:  # a pipeline may need more than an image, such as other images to mix
        yield note("D316", f"the pipeline cannot process {image['img_path']} alone ({reason(error)})")
        return
    inputs = (found or {}).get("inputs")  # a step may drop the image, or no step packs it
    if isinstance(inputs, Tensor) and inputs.shape[0] != channels:
        text = f"the pipeline gives images of {inputs.shape[0]} bands, the backbone has in_channels={channels}"
        fix = "load the images by LoadRasterFromFile, whose `bands` chooses bands, or correct in_channels"
        yield fail("D317", text, fix)


def load_each(step: dict, images: Sequence[dict]) -> Iterator[tuple[dict, dict | Exception]]:
    """Yield each image and the output of a pipeline step, or its exception."""
    load = TRANSFORMS.build(step)
    for image in images:
        try:
            yield image, load(dict(image, seg_fields=[]))
        except Exception as error:  # every decoder has its own exceptions
            yield image, error


def pipeline_step(dataset: dict, name: str) -> dict | None:
    """Return the first step of this type in a data set's pipeline."""
    return next((step for step in dataset.get("pipeline", []) if type_name(step) == name), None)


def has_own_steps(dataset: dict) -> bool:
    """Return whether a pipeline has steps that are not of the libraries, which may do anything."""
    libraries = ("mmcv", "mmdet", "mmseg", "xcit_mm")
    kinds = (part_class(step, TRANSFORMS) for step in dataset.get("pipeline", []))
    return any(kind is not None and kind.__module__.partition(".")[0] not in libraries for kind in kinds)


def missing_paths(paths: Sequence[str]) -> dict[str, None]:
    """Return the paths that do not exist, in order. To list a folder once is faster than to test each file."""
    names: dict[str, set[str]] = {}
    for folder in {os.path.dirname(path) for path in paths}:
        here = folder or "."  # the folder of a bare name is ""
        names[folder] = set(os.listdir(here)) if os.path.isdir(here) else set()
    return dict.fromkeys(path for path in paths if os.path.basename(path) not in names[os.path.dirname(path)])


def sample_evenly(items: Sequence) -> list:
    """Return at most `SAMPLE_SIZE` items, evenly from the first to the last."""
    return [items[place] for place in np.linspace(0, len(items) - 1, min(SAMPLE_SIZE, len(items))).astype(int)]
