"""Checks of data sets in COCO's format: errors in the json, and annotations that mmdet drops
without a message.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from ..utils.configs import evaluators, find_step, metainfo
from ..utils.errors import preview, reason
from .findings import Finding, fail, note, ok
from .images import build_dataset, check_images

Coco = dict[str, Any]
MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image
MAX_SCORED = 100  # objects of an image that COCO's mAP counts

_KEYS = dict(  # that mmdet reads
    images=("id", "file_name", "height", "width"),
    categories=("id", "name"),
    annotations=("image_id", "category_id", "bbox", "area", "iscrowd"),
)


def read_coco(path: str | Path, masks: bool = False) -> Coco:
    """Read a COCO json.

    Raises:
        ValueError: If the file is not JSON, lacks a list or a key that mmdet reads, perhaps of
            masks, if a box is not four numbers, or if two images or categories have one id.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        for kind, keys in _KEYS.items():
            for entry, key in ((entry, key) for entry in content[kind] for key in keys):
                entry[key]
        for each in content["annotations"]:
            if masks and not each.get("segmentation"):
                raise ValueError(f"annotation {each.get('id')} has no segmentation")
            if len(each["bbox"]) != 4 or not all(map(isfinite, each["bbox"])):
                raise ValueError(f"a bbox is {each['bbox']}, not [x, y, width, height]")
        for kind in ("images", "categories"):
            if len({entry["id"] for entry in content[kind]}) < len(content[kind]):
                raise ValueError(f"two of its {kind} have one id")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not in COCO's format: {reason(error)}") from None
    return content


def check_coco(cfg: Config, split: str, dataset: dict) -> Iterator[Finding]:
    """Check a data set of a split against its json, also against another json that scores, and its
    images.
    """
    path, classes = (
        os.path.join(dataset.get("data_root") or "", dataset["ann_file"]),
        metainfo(dataset)["classes"],
    )
    masks = (find_step(dataset.get("pipeline", []), "LoadAnnotations") or {}).get(
        "with_mask", False
    )
    scored = [each["ann_file"] for each in evaluators(cfg, split) if "ann_file" in each]
    names = {os.path.realpath(name): name for name in [*scored, path]}.values()  # each file once
    try:
        contents = {name: read_coco(name, masks and name == path) for name in names}
    except ValueError as error:
        yield fail(
            "D401", str(error), "export the file again with this key, or with one id for each entry"
        )
        return
    wrong = [finding for name, content in contents.items() for finding in _check_ids(name, content)]
    yield from wrong
    if wrong or isinstance(classes, str):  # check_classes reports a string
        return
    coco = contents[path]
    yield from _check_categories(coco, classes)
    loaded = build_dataset(dataset).data_list
    yield from _check_instances(path, classes, coco, loaded)
    yield from _check_boxes(path, loaded)
    yield from check_images(
        dataset, {image["img_path"]: (image["height"], image["width"]) for image in loaded}
    )
    empty = len(coco["images"]) - len(
        {annotation["image_id"] for annotation in coco["annotations"]}
    )
    yield ok(f"{len(loaded)} of {len(coco['images'])} images are used; {empty} have no object")


def _check_ids(path: str, coco: Coco) -> Iterator[Finding]:
    """Check the ids of annotations. pycocotools takes an object with id 0 for unmatched, and uses
    ids as keys.
    """
    ids = [annotation.get("id") for annotation in coco["annotations"]]
    wrong = [each for each in ids if type(each) is not int or each < 1]
    repeated = len(ids) - len(set(map(str, ids)))
    if wrong or repeated:
        text = (
            f"an id that is not a positive integer, such as {wrong[0]!r}"
            if wrong
            else "the id of another"
        )
        text = f"{len(wrong) or repeated} annotations of {path} have {text}: pycocotools counts them as missed"
        yield fail("D418", text, "number the annotations 1, 2, 3, ...")


def _check_categories(coco: Coco, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order
    of the json.
    """
    names, annotated = (
        [each["name"] for each in coco["categories"]],
        {a["category_id"] for a in coco["annotations"]},
    )
    learned, absent = (
        [name for name in names if name in classes],
        [name for name in classes if name not in names],
    )
    left_out = [
        each["name"]
        for each in coco["categories"]
        if each["name"] not in classes and each["id"] in annotated
    ]
    others = (
        f"the config leaves out categories of the json: {preview(left_out)}" if left_out else ""
    )
    if absent:
        text = f"{len(absent)} of {len(classes)} classes are not categories of the json: {preview(absent)}; {others}"
        fix = f"metainfo=dict(classes={tuple(names)}), as in the json, or correct the json"
        yield fail("D405", text.rstrip("; "), fix)
    elif learned != list(classes):
        swapped = [
            f"{theirs} as {ours}"
            for theirs, ours in zip(learned, classes, strict=False)
            if theirs != ours
        ]
        text = f"mmdet makes a class of each category in the order of the json, and would show {preview(swapped)}"
        fix = f"metainfo=dict(classes={tuple(dict.fromkeys(learned))}), and one category for each name in the json"
        yield fail("D406", text, fix)
    elif left_out:
        yield note("D405", others, "add these categories to classes")


def _check_instances(
    path: str, classes: Sequence[str], coco: Coco, loaded: Sequence[dict]
) -> Iterator[Finding]:
    """Compare the annotations of the images that mmdet has loaded with those of the json."""
    annotations, images = coco["annotations"], {image["id"] for image in coco["images"]}
    names = {category["id"]: category["name"] for category in coco["categories"]}
    given = sum(
        names.get(annotation["category_id"], classes[0]) in classes for annotation in annotations
    )
    unknown = sum(
        each["image_id"] not in images or each["category_id"] not in names for each in annotations
    )
    instances = [instance for image in loaded for instance in image["instances"]]
    if len(instances) < given or not instances:
        text = f"mmdet loads {len(instances)} of {given} annotations of {path}: {unknown} have an unknown image_id or "
        text += (
            "category_id, the others no area, less than a pixel, ignore=1, or no place in the image"
        )
        useless = unknown or len(instances) <= given / 2
        yield (fail if useless else note)("D408", text, "correct these annotations, or remove them")
    crowds, info = (
        sum(bool(annotation["iscrowd"]) for annotation in annotations),
        json.dumps(coco.get("info")),
    )
    if crowds and '"COCO' not in info:  # COCO's own crowds are meant
        text = f"{crowds} of {len(annotations)} annotations of {path} have iscrowd=1, and mmdet does not train on them"
        fix = (
            "iscrowd=0 for single objects, which CVAT exports as crowds if they are drawn by brush"
        )
        yield (fail if crowds == len(annotations) else note)("D409", text, fix)
    objects = Counter(
        instance["bbox_label"] for instance in instances if not instance["ignore_flag"]
    )
    missing = [name for label, name in enumerate(classes) if not objects[label]]
    if objects and missing:
        yield note(
            "D410",
            f"{path} has no objects of {preview(missing)}",
            "annotate objects, or remove the classes",
        )
    most = max(Counter(annotation["image_id"] for annotation in annotations).values(), default=0)
    if most > MAX_SCORED:
        text = f"an image of {path} has {most} objects, COCO's mAP counts the {MAX_SCORED} best predictions of an image"
        yield note(
            "D419", text, "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        )


def _check_boxes(path: str, loaded: Sequence[dict]) -> Iterator[Finding]:
    """Check that boxes are in pixels of their images."""
    pairs = [
        (image, each["bbox"])
        for image in loaded
        for each in image["instances"]
        if not each["ignore_flag"]
    ]
    if not pairs:
        return
    sizes = np.array([(image["width"], image["height"]) for image, _ in pairs], float)
    boxes, fix = np.array([box for _, box in pairs], float), "bbox=[x, y, width, height] in pixels"
    starts, ends = boxes[:, :2], boxes[:, 2:]
    beyond, extents = ((starts < -SLACK) | (ends > sizes + SLACK)).any(axis=1), ends - starts
    many = len(boxes) >= MIN_BOXES
    if beyond.any():
        corners = many and (extents > starts).all() and (extents <= sizes + SLACK).all()
        is_wrong = (
            corners and (starts > sizes / 2).any(axis=1).mean() > 0.05
        )  # all of these would be cut off
        fix += (
            ": these are [x1, y1, x2, y2]"
            if is_wrong
            else ", if the border of the image does not cut off objects"
        )
        text = f"{beyond.sum()} of {len(boxes)} boxes of {path} reach beyond their image"
        yield (fail if is_wrong else note)("D411", text, fix)
    elif many and (ends / sizes).max() <= 0.5:
        text = f"all {len(ends)} boxes of {path} lie in the upper left {(ends / sizes).max():.0%} of width and height"
        yield note("D411", text, f"{fix} of the image, if they are of a smaller copy of the images")
