"""Checks of data sets in COCO's format: errors in the json, and annotations that mmdet drops without a message."""

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from ..utils.configs import evaluators, metainfo
from ..utils.errors import preview, reason
from .findings import Finding, fail, note, ok
from .images import check_images, pipeline_step

Coco = dict[str, list[dict]]
MAX_WRONG = 0.05  # fraction of the annotations of a data set that is otherwise correct
MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image
MAX_SCORED = 100  # objects of an image that COCO's mAP counts


def read_coco(path: str | Path) -> Coco:
    """Read a COCO json.

    Raises:
        ValueError: If the file is not JSON, lacks a list or an id, or repeats the id of an image or a category.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        ids = {kind: Counter(entry["id"] for entry in content[kind]) for kind in ("images", "categories")}
        for annotation in content["annotations"]:
            annotation["image_id"], annotation["category_id"]
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {reason(error)}") from None
    for kind, counts in ids.items():
        if len(counts) < counts.total():
            raise ValueError(f"{path} has {counts.total() - len(counts)} {kind} with the id of another entry")
    return content


def check_coco(cfg: Config, split: str, dataset: dict) -> Iterator[Finding]:
    """Check a data set of a split against its json and its images."""
    root = dataset.get("data_root") or ""
    path = os.path.join(root, dataset["ann_file"])
    scored = [each["ann_file"] for each in evaluators(cfg, split) if each.get("ann_file")]
    try:
        coco, truths = read_coco(path), {name: read_coco(name) for name in scored if not _is_same(name, path)}
    except ValueError as error:
        yield fail("D401", str(error), "export the file again, with one id for each entry")
        return
    wrong = [*_check_format(path, dataset, coco), *_check_ids(path, coco)]
    wrong += [finding for name, truth in truths.items() for finding in _check_ids(name, truth)]
    yield from wrong
    classes = metainfo(dataset)["classes"]
    if wrong or isinstance(classes, str):  # check_classes reports a string
        return
    yield from _check_categories(coco, classes)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        loaded = DATASETS.build({**dataset, "pipeline": [], "serialize_data": False}).data_list
    yield from _check_instances(path, classes, coco, loaded)
    used = {image["img_id"] for image in loaded}
    folder = os.path.join(root, dataset["data_prefix"]["img"])
    yield from check_images(
        dataset,
        {
            os.path.join(folder, image["file_name"]): (image["height"], image["width"])
            for image in coco["images"]
            if image["id"] in used
        },
    )


def _is_same(name: str, path: str) -> bool:
    return os.path.realpath(name) == os.path.realpath(path)


def _check_format(path: str, dataset: dict, coco: Coco) -> Iterator[Finding]:
    """Check the keys that mmdet reads, and the boxes."""
    masks = bool((pipeline_step(dataset, "LoadAnnotations") or {}).get("with_mask"))
    keys = ["bbox", "area", "iscrowd", *["segmentation"] * masks]
    needed = dict(categories=["name"], images=["file_name", "height", "width"], annotations=keys)
    for kind, key in ((kind, key) for kind, keys in needed.items() for key in keys):
        missing = sum(entry.get(key) in (None, []) for entry in coco[kind])
        if missing:
            yield fail("D401", f"{missing} {kind} of {path} have no {key}", f"add {key}: mmdet reads it")
    boxes = [annotation.get("bbox") or [0] * 4 for annotation in coco["annotations"]]
    wrong = [box for box in boxes if len(box) != 4 or not all(type(x) in (int, float) and isfinite(x) for x in box)]
    if wrong:
        text = f"{len(wrong)} annotations of {path} have a bbox such as {wrong[0]}"
        yield fail("D401", text, "bbox=[x, y, width, height], four numbers")


def _check_ids(path: str, coco: Coco) -> Iterator[Finding]:
    """Check the ids of annotations. pycocotools takes an object with id 0 for unmatched, and uses ids as keys."""
    ids = [annotation.get("id") for annotation in coco["annotations"]]
    wrong = [each for each in ids if type(each) is not int or each < 1]
    repeated = len(ids) - len(set(map(str, ids)))
    text = f"{repeated} annotations of {path} have the id of another" if repeated else ""
    if wrong:
        text = f"{len(wrong)} annotations of {path} have an id that is not a positive integer, such as {wrong[0]!r}"
    if text:
        yield fail("D418", f"{text}: pycocotools counts them as missed", "number the annotations 1, 2, 3, ...")


def _check_categories(coco: Coco, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order of the json."""
    names, counts = (
        [each["name"] for each in coco["categories"]],
        Counter(a["category_id"] for a in coco["annotations"]),
    )
    learned = [name for name in names if name in classes]
    left_out = [each for each in coco["categories"] if each["name"] not in classes and counts[each["id"]]]
    others = preview([f"{each['name']} ({counts[each['id']]} annotations)" for each in left_out])
    absent = [name for name in classes if name not in names]
    if len(learned) > len(set(learned)):
        twice = preview(
            [f"id {each['id']} is {each['name']}" for each in coco["categories"] if learned.count(each["name"]) > 1]
        )
        fix = "remove categories without annotations, and give all annotations of a name one category_id"
        yield fail("D417", f"categories of one name are different classes to mmdet: {twice}", fix)
    elif absent:
        text = f"{len(absent)} of {len(classes)} classes are not categories of the json: {preview(absent)}"
        text += f"; the config leaves out its {others}" if others else ""
        yield fail("D405", text, f"metainfo=dict(classes={tuple(names)}), as in the json, or correct the json")
    elif learned != list(classes):
        swapped = [f"{theirs} as {ours}" for theirs, ours in zip(learned, classes, strict=False) if theirs != ours]
        text = f"mmdet numbers categories in the order of the json, it would show {preview(swapped)}"
        yield fail("D406", text, f"metainfo=dict(classes={tuple(learned)}), the order of the json")
    elif others:
        yield note("D405", f"the classes leave out categories: {others}", "add these categories to classes")


def _check_instances(path: str, classes: Sequence[str], coco: Coco, loaded: Sequence[dict]) -> Iterator[Finding]:
    """Compare the annotations of the images that mmdet has loaded with those of the json."""
    annotations, total = coco["annotations"], len(coco["images"])
    instances = [instance for image in loaded for instance in image["instances"]]
    reasons = _reasons(coco, classes, {image["img_id"] for image in loaded})
    dropped = Counter(filter(None, reasons))
    if dropped or not instances:
        useless = not instances or dropped[_NO_IMAGE] or dropped[_NO_CATEGORY] or dropped[_NO_AREA] > len(reasons) / 20
        text = f"mmdet loads {len(instances)} of {len(annotations)} annotations of {path}: "
        text += ", ".join(f"{times} {why}" for why, times in dropped.most_common())
        yield (fail if useless else note)("D408", text.rstrip(": "), "correct these annotations, or remove them")
    crowds = sum(bool(annotation.get("iscrowd")) for annotation in annotations)
    info: Any = coco.get("info") or {}
    if crowds and not str(info.get("description")).startswith("COCO"):  # COCO's own crowds are meant
        text = f"{crowds} of {len(annotations)} annotations of {path} have iscrowd=1, and mmdet does not train on them"
        fix = "iscrowd=0 for single objects, which CVAT exports as crowds if they are drawn by brush"
        yield (fail if crowds == len(annotations) else note)("D409", text, fix)
    objects = Counter(instance["bbox_label"] for instance in instances if not instance["ignore_flag"])
    missing = [name for label, name in enumerate(classes) if not objects[label]]
    if objects and missing:
        yield note("D410", f"{path} has no objects of {preview(missing)}", "annotate objects, or remove the classes")
    most = max(Counter(annotation["image_id"] for annotation in annotations).values(), default=0)
    if most > MAX_SCORED:
        text = f"an image of {path} has {most} objects, COCO's mAP counts the {MAX_SCORED} best predictions of an image"
        yield note("D419", text, "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP")
    kept = [each for each, why in zip(annotations, reasons, strict=True) if not why and not each.get("iscrowd")]
    yield from _check_boxes(path, kept, coco["images"]) if kept else ()
    empty = total - len({annotation["image_id"] for annotation in annotations})
    negatives = f"; {empty} of {total} images have no object" if empty else ""
    yield ok(f"{len(loaded)} of {total} images are used, with {objects.total()} objects{negatives}")


_NO_IMAGE, _NO_CATEGORY, _NO_AREA = "with an unknown image_id", "with an unknown category_id", "with area 0"


def _reasons(coco: Coco, classes: Sequence[str], used: set) -> list[str]:
    """Return the reason for which mmdet drops each annotation, or '' if the config leaves it out or it is used."""
    images = {image["id"]: image for image in coco["images"]}
    known = {category["id"]: category["name"] in classes for category in coco["categories"]}

    def why(annotation: dict) -> str:
        image, category = images.get(annotation["image_id"]), annotation["category_id"]
        if image is None or category not in known:
            return _NO_CATEGORY if image else _NO_IMAGE
        x, y, width, height = annotation["bbox"]
        if annotation.get("ignore") or not known[category]:
            return "marked ignore" if known[category] else "of categories outside the classes"
        if width < 1 or height < 1:
            return "with boxes less than a pixel wide or high"
        if not (x < image["width"] and y < image["height"] and x + width > 0 and y + height > 0):
            return "outside the image"
        return _NO_AREA if annotation["area"] <= 0 else "" if image["id"] in used else "in images that are left out"

    return [why(annotation) for annotation in coco["annotations"]]


def _check_boxes(path: str, annotations: Sequence[dict], images: Sequence[dict]) -> Iterator[Finding]:
    """Check that boxes are in pixels of their images."""
    by_id = {image["id"]: (image["width"], image["height"]) for image in images}
    sizes = np.array([by_id[annotation["image_id"]] for annotation in annotations], float)
    boxes = np.array([annotation["bbox"] for annotation in annotations], float)
    starts, extents, ends = boxes[:, :2], boxes[:, 2:], boxes[:, :2] + boxes[:, 2:]
    beyond, fix = ((starts < -SLACK) | (ends > sizes + SLACK)).any(axis=1), "bbox=[x, y, width, height] in pixels"
    corners = len(beyond) >= MIN_BOXES and (extents > starts).all() and (extents <= sizes + SLACK).all()
    if beyond.any():
        text = f"{beyond.sum()} of {len(beyond)} boxes of {path} reach beyond their image"
        is_wrong = corners and (starts > sizes / 2).any(axis=1).mean() > MAX_WRONG  # all of these would be cut off
        fix += ": these are [x1, y1, x2, y2]" if is_wrong else ", if the border of the image does not cut off objects"
        yield (fail if is_wrong else note)("D411", text, fix)
    elif len(ends) >= MIN_BOXES and (ends / sizes).max() <= 0.5:
        text = f"all {len(ends)} boxes of {path} lie in the upper left {(ends / sizes).max():.0%} of width and height"
        yield note("D411", text, f"{fix} of the image, if they are of a smaller copy of the images")
