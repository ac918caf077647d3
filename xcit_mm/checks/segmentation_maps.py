"""Checks of data sets of segmentation maps: labels against classes and heads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

import mmcv
import numpy as np
from mmengine.registry import DATASETS
from torch import nn

from ..utils.configs import type_name
from ..utils.errors import preview, reason
from .findings import Finding, fail, note, ok
from .images import check_bands, check_images, has_own_steps, load_each, missing_paths, pipeline_step, sample_evenly

IGNORED = 255  # the label to which reduce_zero_label changes label 0 in mmseg


def check_segmentation_maps(
    dataset: dict, heads: Mapping[str, nn.Module], channels: int | None, decisive: bool
) -> Iterator[Finding]:
    """Check images and segmentation maps of a data set.

    Args:
        channels: Number of input channels of the model, if known.
        decisive: Whether training has no other data set, which may hold other classes.
    """
    built = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})
    images = built.data_list
    if not images:
        yield fail("D501", f"no *{built.img_suffix} in {built.data_prefix['img_path']}", "correct img_suffix")
        return
    unlabelled = missing_paths([image["seg_map_path"] for image in images])
    if unlabelled:
        text = f"{len(unlabelled)} of {len(images)} images have no segmentation map: {preview(unlabelled)}"
        yield fail("D502", text, "add these files, or correct seg_map_suffix and data_prefix.seg_map_path")
    shapes = yield from check_images(dataset, images)
    step = pipeline_step(dataset, "LoadAnnotations")
    if step is None:
        yield note("D510", "the pipeline has no LoadAnnotations", "add it, if no other step reads the maps")
        return
    report = note if has_own_steps(dataset) else fail  # such a step may correct labels and sizes
    if step.get("reduce_zero_label") not in (None, built.reduce_zero_label):
        text = f"reduce_zero_label={built.reduce_zero_label} in the data set, not in its LoadAnnotations"
        yield fail("D503", text, "remove it from LoadAnnotations, which follows the data set")
        return
    sample = [image for image in sample_evenly(images) if image["seg_map_path"] not in unlabelled]
    maps = _read_maps(step, dataset, sample, shapes)
    if maps.coloured:
        fix = "write segmentation maps of one channel, or with a palette, whose values are class numbers"
        yield report("D505", f"{maps.coloured}: colours instead of labels", fix)
        return
    if maps.unreadable:
        yield fail("D504", preview(maps.unreadable), "replace these files, and check the rest: this is a sample")
    if maps.misplaced:
        yield report("D511", preview(maps.misplaced), "write each map in the size of its image")
    if maps.wrapped:
        fix = "write 8-bit maps with the numbers of the classes"
        yield fail("D512", f"mmseg keeps the last 8 bits of a label: {preview(maps.wrapped)}", fix)
    if not maps.counts.any():
        return
    if channels and maps.readable:
        yield from check_bands(dataset, maps.readable[0], channels)
    reduced = built.reduce_zero_label
    wrong = [each for item in heads.items() for each in _check_labels(*item, maps.counts, reduced, report)]
    yield from wrong
    ignored = next((getattr(head, "ignore_index", IGNORED) for head in heads.values()), IGNORED)
    names = list(built.metainfo.get("classes") or ())
    names = ["background", *names] if len(names) == 1 else names
    absent = _absent(names, maps.counts, ignored)
    if decisive and len(absent) >= len(names) - 1 and not wrong:  # read on until a second class occurs
        read = {image["seg_map_path"] for image in maps.readable}
        for image, loaded in load_each(step, [image for image in images if image["seg_map_path"] not in read]):
            if not isinstance(loaded, Exception):
                maps.readable.append(image)
                maps.counts += np.bincount(loaded["gt_seg_map"].ravel(), minlength=256)
                absent = _absent(names, maps.counts, ignored)
                if len(absent) < len(names) - 1:
                    break
    complete = len(maps.readable) == len(images)
    # A sample cannot hold more classes than maps, and a rare class may be in other maps.
    if absent and not wrong and (complete or len(names) <= len(maps.readable)):
        useless = complete and decisive and len(absent) >= len(names) - 1
        yield (report if useless else note)(
            "D513",
            f"{len(maps.readable)} of {len(images)} segmentation maps have no pixels of {preview(absent)}, "
            f"and {maps.counts[ignored]} pixels of label {ignored}, which is ignored",
            "write the numbers of the classes, 0, 1, ..., into the maps, or remove classes that never occur",
        )
    last = maps.counts[:IGNORED].nonzero()[0].max(initial=0)
    labels = f"labels up to {last}, {maps.counts[IGNORED] / maps.counts.sum():.1%} {IGNORED}"
    yield ok(f"{len(images)} images with segmentation maps; in a sample {labels}")


@dataclass
class _Maps:
    """The segmentation maps of a sample, as training sees them, and descriptions of wrong maps."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))  # pixels of each label
    readable: list[dict] = field(default_factory=list)  # the images whose maps were counted
    unreadable: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)  # of another size than their image
    wrapped: list[str] = field(default_factory=list)  # whose labels do not fit 8 bits
    coloured: str = ""  # of several channels, which ends the reading


def _absent(names: Sequence[str], counts: np.ndarray, ignored: int) -> list[str]:
    """Return the classes without pixels."""
    return [name for label, name in enumerate(names) if label == ignored or not counts[label]]


def _read_maps(step: dict, dataset: dict, sample: Sequence[dict], shapes: Mapping[str, Sequence[int]]) -> _Maps:
    """Read the segmentation maps of a sample by the step of the pipeline that loads them."""
    maps = _Maps()
    for image, loaded in load_each(step, sample):
        path = image["seg_map_path"]
        if isinstance(loaded, Exception):
            maps.unreadable.append(f"{path} cannot be read ({reason(loaded)})")
            continue
        labels = loaded["gt_seg_map"]
        if labels.ndim != 2:
            maps.coloured = f"{path} has {labels.shape[-1]} channels"
            break
        maps.readable.append(image)
        maps.counts += np.bincount(labels.ravel(), minlength=256)
        shape = shapes.get(image["img_path"])
        if shape and labels.shape != shape and not _resized_to_one_size(dataset, labels.shape, shape):
            maps.misplaced.append(f"{path} has {labels.shape} pixels, its image {shape}")
        given = mmcv.imread(path, "unchanged", backend=step.get("imdecode_backend", "pillow"))
        if given.itemsize > 1 and ((given > IGNORED) & (given % 256 != IGNORED)).any():
            maps.wrapped.append(f"{path} holds {given.max():g}")
    return maps


def _resized_to_one_size(dataset: dict, size: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a pipeline resizes a map and its image to the same size, each from its own."""
    names = [type_name(step) for step in dataset["pipeline"]]
    steps = dataset["pipeline"][names.index("LoadAnnotations") :]
    resize = next((step for step in steps if "Resize" in type_name(step)), None)
    return resize is not None and (not resize.get("keep_ratio") or isclose(size[0] * shape[1], size[1] * shape[0]))


def _check_labels(
    where: str, head: Any, counts: np.ndarray, reduced: bool, report: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    """Check the number of pixels of each label, as training sees them, against a head."""
    number, ignored = head.num_classes, getattr(head, "ignore_index", IGNORED)
    # A threshold separates a single class from the background, label 0.
    labels = max(number, 2) if getattr(head, "out_channels", None) == 1 else number
    beyond = [label for label in range(labels, 256) if counts[label] and label != ignored]
    shifted = not reduced and beyond == [labels]
    if beyond:
        yield report(
            "D506",
            f"{where} has num_classes={number} and ignore_index={ignored}, the segmentation maps hold "
            + preview([f"label {label} ({counts[label]} pixels)" for label in beyond]),
            "correct num_classes, or give the label of unlabelled pixels as ignore_index"
            + ("; reduce_zero_label=True in the data set if labels count from 1" if shifted else ""),
        )
    elif reduced and counts[IGNORED] and counts[: number - 1].all() and not counts[number - 1]:
        yield note(  # the counts are the same if the last class is rare
            "D507",
            f"{where}: all classes but the last have pixels in a sample, and reduce_zero_label=True ignores label 0",
            "reduce_zero_label=False in the data set if labels count from 0",
        )
    elif not reduced and not counts[0]:
        fix = "reduce_zero_label=True in the data set if labels count from 1"
        yield note("D508", f"{where}: no label 0 in a sample", fix)
