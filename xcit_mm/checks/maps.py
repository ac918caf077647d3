"""Checks of data sets of segmentation maps: labels against classes and heads."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mmcv
import numpy as np
from mmengine.registry import DATASETS, TRANSFORMS
from torch import nn

from ..utils.configs import part_class, type_name
from ..utils.errors import preview, reason
from .findings import Finding, fail, note, ok
from .images import check_images, load_sample, missing_paths, pipeline_step, read_header

IGNORED = 255  # the label to which reduce_zero_label changes label 0 in mmseg


def check_maps(dataset: dict, heads: Mapping[str, nn.Module], decisive: bool) -> Iterator[Finding]:
    """Check images and segmentation maps. It is `decisive` if training has no other data set with other classes."""
    built = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False})
    images, step = built.data_list, pipeline_step(dataset, "LoadAnnotations")
    if not images:
        yield fail("D314", f"no *{built.img_suffix} in {built.data_prefix['img_path']}", "correct img_suffix")
        return
    unlabelled = missing_paths([image["seg_map_path"] for image in images])
    if unlabelled:
        text = f"{len(unlabelled)} of {len(images)} images have no segmentation map: {preview(unlabelled)}"
        yield fail("D314", text, "add these files, or correct seg_map_suffix and data_prefix.seg_map_path")
    yield from check_images(dataset, dict.fromkeys(image["img_path"] for image in images))
    kinds = [part_class(each, TRANSFORMS) for each in dataset["pipeline"]]
    libraries = {kind.__module__.partition(".")[0] for kind in kinds if kind}
    labelled = [image for image in images if image["seg_map_path"] not in unlabelled]
    if step is None or not labelled or libraries - {"mmcv", "mmseg", "xcit_mm"}:
        return  # an own step may read or correct the maps
    wrong = list(_check_headers(dataset, labelled))
    yield from wrong
    if wrong:
        return
    counts, read, unreadable = _count_labels(step, labelled, 32)
    if unreadable:
        yield fail("D315", preview(unreadable), "replace these files, and check the rest: this is a sample")
    wrong = [f for name, head in heads.items() for f in _check_labels(name, head, counts, built.reduce_zero_label)]
    yield from wrong
    names = list(built.metainfo.get("classes") or ())
    names = ["background", *names] if len(names) == 1 else names
    ignored = next((getattr(head, "ignore_index", IGNORED) for head in heads.values()), IGNORED)
    if decisive and sum(label != ignored for label in counts) < 2:  # read on: a second class may occur
        counts, read, _ = _count_labels(step, labelled, len(labelled))
    absent = [name for label, name in enumerate(names) if label == ignored or not counts[label]]
    # A sample cannot hold more classes than maps, and a rare class may be in other maps.
    if absent and not wrong and (read == len(labelled) or len(names) <= read):
        text = f"{read} of {len(images)} segmentation maps have no pixels of {preview(absent)}, "
        text += f"and {counts[ignored]} pixels of label {ignored}, which is ignored"
        fix = "write the numbers of the classes, 0, 1, ..., into the maps, or correct classes or reduce_zero_label"
        useless = decisive and read == len(labelled) and len(absent) >= len(names) - 1
        yield (fail if useless else note)("D513", text, fix)
    last = max((label for label in counts if label < IGNORED), default=0)
    labels = f"labels up to {last}, {counts[IGNORED] / max(counts.total(), 1):.1%} {IGNORED}"
    yield ok(f"{len(images)} images with segmentation maps; in a sample {labels}")


def _check_headers(dataset: dict, images: Sequence[dict]) -> Iterator[Finding]:
    """Check the channels and sizes of all maps by the headers of the files."""
    coloured, misplaced, pipeline = [], [], dataset["pipeline"]
    names = [type_name(step) for step in pipeline]
    resize = next(
        (s for s in pipeline[names.index("LoadAnnotations") :] if "Resize" in type_name(s)), {"keep_ratio": 1}
    )
    for image in images:
        path, found, own = image["seg_map_path"], read_header(image["seg_map_path"]), read_header(image["img_path"])
        if found and found[1] > 1:
            coloured.append(f"{path} has {found[1]} channels")
        elif found and own and found[0] != own[0] and resize.get("keep_ratio"):  # else both are resized to one size
            misplaced.append(f"{path} has {found[0]} pixels, its image {own[0]}")
    if coloured:
        fix = "write segmentation maps of one channel, or with a palette, whose values are class numbers"
        yield fail("D505", f"colours instead of labels: {preview(coloured)}", fix)
    if misplaced:
        yield fail("D511", preview(misplaced), "write each map in the size of its image")


def _count_labels(step: dict, images: Sequence[dict], size: int) -> tuple[Counter[int], int, list[str]]:
    """Return the pixels of each label in a sample, the number of its maps, and descriptions of unreadable maps."""
    counts, unreadable, read = Counter[int](), [], 0
    paths = {image["img_path"]: image["seg_map_path"] for image in images}
    for path, loaded in load_sample(step, images, size):
        if isinstance(loaded, Exception):
            unreadable.append(f"{paths[path]} cannot be read ({reason(loaded)})")
            continue
        given = mmcv.imread(paths[path], "unchanged", backend=step.get("imdecode_backend", "pillow"))
        wrapped = given[given > IGNORED] if given.itemsize > 1 else given[:0]  # mmseg keeps the last 8 bits
        for labels in (loaded["gt_seg_map"], wrapped):
            for label, times in zip(*np.unique(labels, return_counts=True), strict=True):
                counts[int(label)] += int(times)
        read += 1
    return counts, read, unreadable


def _check_labels(where: str, head: Any, counts: Mapping[int, int], reduced: bool) -> Iterator[Finding]:
    """Check the number of pixels of each label, as training sees them, against a head."""
    number, ignored = head.num_classes, getattr(head, "ignore_index", IGNORED)
    # A threshold separates a single class from the background, label 0.
    labels = max(number, 2) if getattr(head, "out_channels", None) == 1 else number
    beyond = [
        label
        for label in sorted(counts)
        if label >= labels and label != ignored and (label <= IGNORED or label % 256 != IGNORED)
    ]
    if beyond:
        held = preview([f"label {label} ({counts[label]} pixels)" for label in beyond])
        text = f"{where} has num_classes={number} and ignore_index={ignored}, the segmentation maps hold {held}"
        fix = "correct num_classes, or give the label of unlabelled pixels as ignore_index"
        fix += "; reduce_zero_label=True in the data set if labels count from 1" * (beyond == [labels] and not reduced)
        fix += "; mmseg keeps the last 8 bits of a label" * (beyond[-1] > IGNORED)
        yield fail("D506", text, fix)
