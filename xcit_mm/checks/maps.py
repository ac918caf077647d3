"""Checks of data sets of segmentation maps: labels against classes and heads."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mmcv
import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch import nn

from ..utils.configs import find_step, part_class
from ..utils.errors import preview
from .findings import Finding, fail, note, ok
from .images import SAMPLE, build_dataset, check_images, load_sample

IGNORED = 255  # the label to which reduce_zero_label changes label 0 in mmseg
_LIBRARIES = {"mmcv", "mmseg", "xcit_mm"}


def check_maps(dataset: dict, heads: Mapping[str, nn.Module], decisive: bool) -> Iterator[Finding]:
    """Check images and segmentation maps. It is `decisive` if training has no other data set with
    other classes.
    """
    built = build_dataset(dataset)
    images, step = built.data_list, find_step(dataset["pipeline"], "LoadAnnotations")
    if not images:
        yield fail(
            "D314",
            f"no *{built.img_suffix} in {built.data_prefix['img_path']}",
            "correct img_suffix",
        )
        return
    missing = [
        image["seg_map_path"] for image in images if not os.path.isfile(image["seg_map_path"])
    ]
    if missing:
        text = (
            f"{len(missing)} of {len(images)} images have no segmentation map: {preview(missing)}"
        )
        yield fail(
            "D314", text, "add these files, or correct seg_map_suffix and data_prefix.seg_map_path"
        )
    yield from check_images(dataset, dict.fromkeys(image["img_path"] for image in images))
    kinds = [part_class(each, TRANSFORMS) for each in dataset["pipeline"]]
    if (
        missing
        or step is None
        or {kind.__module__.partition(".")[0] for kind in kinds if kind} - _LIBRARIES
    ):
        return  # an own step may read or correct the maps
    wrong = list(_check_headers(images))
    yield from wrong
    if wrong:
        return
    counts, unreadable = _count_labels(step, images, SAMPLE)
    ignored = next((getattr(head, "ignore_index", IGNORED) for head in heads.values()), IGNORED)
    read = min(SAMPLE, len(images))
    if decisive and len(counts.keys() - {ignored}) < 2:  # read on: a second class may occur
        (counts, unreadable), read = _count_labels(step, images, len(images)), len(images)
    if unreadable:
        yield fail(
            "D315", preview(unreadable), "replace these files, and check the rest: this is a sample"
        )
    wrong = [
        f
        for name, head in heads.items()
        for f in _check_labels(name, head, counts, built.reduce_zero_label)
    ]
    yield from wrong
    names = built.metainfo.get("classes") or ()
    names = ["background", *names] if len(names) == 1 else names
    absent = [name for label, name in enumerate(names) if label == ignored or not counts[label]]
    if (
        absent and not wrong and (read == len(images) or len(names) <= read)
    ):  # else the sample is too small
        text = f"{read} of {len(images)} segmentation maps have no pixels of {preview(absent)}, "
        text += f"and {counts[ignored]} pixels of label {ignored}, which is ignored"
        fix = "write the numbers of the classes, 0, 1, ..., into the maps, or correct classes or reduce_zero_label"
        useless = decisive and read == len(images) and len(absent) >= len(names) - 1
        yield (fail if useless else note)("D513", text, fix)
    yield ok(f"{len(images)} images with segmentation maps; {len(counts)} labels in a sample")


def _check_headers(images: Sequence[dict]) -> Iterator[Finding]:
    """Check the channels and sizes of all maps by the headers of the files. Other checks report
    broken files.
    """
    coloured, misplaced = [], []
    for path, own in ((image["seg_map_path"], image["img_path"]) for image in images):
        with (
            contextlib.suppress(OSError, Image.DecompressionBombError),
            Image.open(path) as drawn,
            Image.open(own) as photo,
        ):
            if len(drawn.getbands()) > 1:
                coloured.append(f"{path} has {len(drawn.getbands())} channels")
            elif drawn.size != photo.size:
                misplaced.append(
                    f"{path} has {drawn.size[::-1]} pixels, its image {photo.size[::-1]}"
                )
    if coloured:
        fix = "write segmentation maps of one channel, or with a palette, whose values are class numbers"
        yield fail("D505", f"colours instead of labels: {preview(coloured)}", fix)
    if misplaced:
        yield fail("D511", preview(misplaced), "write each map in the size of its image")


def _count_labels(step: dict, images: Sequence[dict], size: int) -> tuple[Counter[int], list[str]]:
    """Return the pixels of each label in a sample, and descriptions of unreadable maps."""
    counts, unreadable = Counter[int](), list[str]()
    for image, loaded in load_sample(step, images, unreadable, size):
        given = mmcv.imread(
            image["seg_map_path"], "unchanged", backend=step.get("imdecode_backend", "pillow")
        )
        wrapped = (
            given[given > IGNORED] if given.itemsize > 1 else given[:0]
        )  # mmseg keeps the last 8 bits
        for labels in (loaded["gt_seg_map"], wrapped):
            counts.update(
                dict(
                    zip(
                        *(each.tolist() for each in np.unique(labels, return_counts=True)),
                        strict=True,
                    )
                )
            )
    return counts, unreadable


def _check_labels(
    where: str, head: Any, counts: Mapping[int, int], reduced: bool
) -> Iterator[Finding]:
    """Check the number of pixels of each label, as training sees them, against a head."""
    number, ignored = head.num_classes, getattr(head, "ignore_index", IGNORED)
    # A threshold separates a single class from the background, label 0.
    labels = max(number, 2) if getattr(head, "out_channels", None) == 1 else number
    beyond = [
        each for each in sorted(counts) if each >= labels and each != ignored and each != 65535
    ]
    if beyond:
        held = preview([f"label {label} ({counts[label]} pixels)" for label in beyond])
        text = f"{where} has num_classes={number} and ignore_index={ignored}, the segmentation maps hold {held}"
        fix = "correct num_classes, or give the label of unlabelled pixels as ignore_index"
        fix += "; reduce_zero_label=True in the data set if labels count from 1" * (
            beyond == [labels] and not reduced
        )
        yield fail("D506", text, fix)
