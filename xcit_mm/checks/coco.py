"""Checks of data sets in COCO's format: errors in the json, and annotations that mmdet drops
without a message.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from mmengine.config import Config

from ..utils.coco import Coco, read_coco
from ..utils.configs import evaluators, find_step, metainfo
from ..utils.errors import preview
from .findings import Finding, fail, note, ok
from .images import build_dataset, check_images

MIN_BOXES = 20  # boxes that cannot be alike by chance
SLACK = 2  # pixels by which a box may reach beyond its image
MAX_SCORED = 100  # objects of an image that COCO's mAP counts


def check_coco(cfg: Config, split: str, dataset: dict) -> Iterator[Finding]:
    """Check a data set of a split against its json, also against another json that scores, and its
    images.
    """
    path = os.path.join(dataset.get("data_root") or "", dataset["ann_file"])
    scored = [evaluator.get("ann_file") for evaluator in evaluators(cfg, split)]
    files = {os.path.realpath(file): file for file in [*filter(None, scored), path]}
    contents = {}
    try:
        for file in files.values():
            contents[file] = read_coco(file)
        if _loads_masks(dataset):
            _require_masks(path, contents[path])
    except ValueError as error:
        fix = "export the file again with this key, or with one id for each entry"
        yield fail("D401", str(error), fix)
        return
    failures = [
        finding for file, content in contents.items() for finding in _check_ids(file, content)
    ]
    yield from failures
    classes = metainfo(dataset)["classes"]
    if failures or isinstance(classes, str):  # check_classes reports a string
        return
    coco = contents[path]
    yield from _check_categories(coco, classes)
    loaded = build_dataset(dataset).data_list
    yield from _check_instances(path, classes, coco, loaded)
    yield from _check_crowds(path, coco)
    yield from _check_numbers(path, classes, coco, loaded)
    yield from _check_boxes(path, loaded)
    sizes = {image["img_path"]: (image["height"], image["width"]) for image in loaded}
    yield from check_images(dataset, sizes)
    with_objects = {annotation["image_id"] for annotation in coco["annotations"]}
    images = len(coco["images"])
    empty = images - len(with_objects)
    yield ok(f"{len(loaded)} of {images} images are used; {empty} have no object")


def _loads_masks(dataset: dict) -> bool:
    step = find_step(dataset.get("pipeline", []), "LoadAnnotations") or {}
    return step.get("with_mask", False)


def _require_masks(path: str, coco: Coco) -> None:
    for annotation in coco["annotations"]:
        if not annotation.get("segmentation"):
            problem = f"annotation {annotation.get('id')} has no segmentation"
            raise ValueError(f"{path} is not in COCO's format: {problem}")


def _check_ids(path: str, coco: Coco) -> Iterator[Finding]:
    """Check the ids of annotations. pycocotools takes an object with id 0 for unmatched, and uses
    ids as keys.
    """
    ids = [annotation.get("id") for annotation in coco["annotations"]]
    invalid = [value for value in ids if type(value) is not int or value < 1]
    repeated = len(ids) - len(set(map(str, ids)))
    problem = f"{repeated} annotations of {path} have the id of another"
    if invalid:
        kind = f"an id that is not a positive integer, such as {invalid[0]!r}"
        problem = f"{len(invalid)} annotations of {path} have {kind}"
    if invalid or repeated:
        fix = "number the annotations 1, 2, 3, ..."
        yield fail("D418", f"{problem}: pycocotools counts them as missed", fix)


def _check_categories(coco: Coco, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order
    of the json.
    """
    names = [category["name"] for category in coco["categories"]]
    learned = [name for name in names if name in classes]
    absent = [name for name in classes if name not in names]
    annotated = {annotation["category_id"] for annotation in coco["annotations"]}
    left_out = [
        category["name"]
        for category in coco["categories"]
        if category["name"] not in classes and category["id"] in annotated
    ]
    leaves_out = f"the config leaves out categories of the json: {preview(left_out)}"
    if absent:
        problem = f"{len(absent)} of {len(classes)} classes are not categories of the json"
        problem = f"{problem}: {preview(absent)}"
        if left_out:
            problem = f"{problem}; {leaves_out}"
        fix = f"metainfo=dict(classes={tuple(names)}), as in the json, or correct the json"
        yield fail("D405", problem, fix)
    elif learned != list(classes):
        pairs = zip(learned, classes, strict=False)
        swapped = [f"{theirs} as {ours}" for theirs, ours in pairs if theirs != ours]
        problem = "mmdet makes a class of each category in the order of the json, and would show"
        in_order = tuple(dict.fromkeys(learned))
        fix = f"metainfo=dict(classes={in_order}), and one category for each name in the json"
        yield fail("D406", f"{problem} {preview(swapped)}", fix)
    elif left_out:
        yield note("D405", leaves_out, "add these categories to classes")


def _check_instances(
    path: str, classes: Sequence[str], coco: Coco, loaded: Sequence[dict]
) -> Iterator[Finding]:
    """Compare the number of annotations that mmdet has loaded with that of the json."""
    images = {image["id"] for image in coco["images"]}
    names = {category["id"]: category["name"] for category in coco["categories"]}
    wanted = 0
    unknown = 0
    for annotation in coco["annotations"]:
        category_id = annotation["category_id"]
        if annotation["image_id"] not in images or category_id not in names:
            unknown += 1
        if category_id not in names or names[category_id] in classes:
            wanted += 1
    instances = sum(len(image["instances"]) for image in loaded)
    if instances < wanted or not instances:
        problem = f"mmdet loads {instances} of {wanted} annotations of {path}"
        reasons = (
            f"{unknown} have an unknown image_id or category_id, the others no area, "
            "less than a pixel, ignore=1, or no place in the image"
        )
        level = fail if unknown or instances <= wanted / 2 else note
        yield level("D408", f"{problem}: {reasons}", "correct these annotations, or remove them")


def _check_crowds(path: str, coco: Coco) -> Iterator[Finding]:
    annotations = coco["annotations"]
    crowds = sum(1 for annotation in annotations if annotation["iscrowd"])
    is_cocos_own = '"COCO' in json.dumps(coco.get("info"))  # whose crowds are meant
    if crowds and not is_cocos_own:
        problem = f"{crowds} of {len(annotations)} annotations of {path} have iscrowd=1"
        tool = "which CVAT exports as crowds if they are drawn by brush"
        level = fail if crowds == len(annotations) else note
        yield level(
            "D409",
            f"{problem}, and mmdet does not train on them",
            f"iscrowd=0 for single objects, {tool}",
        )


def _check_numbers(
    path: str, classes: Sequence[str], coco: Coco, loaded: Sequence[dict]
) -> Iterator[Finding]:
    """Check the numbers of objects of each class and in each image."""
    labels = {
        instance["bbox_label"]
        for image in loaded
        for instance in image["instances"]
        if not instance["ignore_flag"]
    }
    missing = [name for label, name in enumerate(classes) if label not in labels]
    if labels and missing:
        problem = f"{path} has no objects of {preview(missing)}"
        yield note("D410", problem, "annotate objects, or remove the classes")
    counts = Counter(annotation["image_id"] for annotation in coco["annotations"])
    most = max(counts.values(), default=0)
    if most > MAX_SCORED:
        problem = f"an image of {path} has {most} objects"
        limit = f"COCO's mAP counts the {MAX_SCORED} best predictions of an image"
        fix = "score as in docs/prediction.md, COCO; proposal_nums does not raise mAP"
        yield note("D419", f"{problem}, {limit}", fix)


def _check_boxes(path: str, loaded: Sequence[dict]) -> Iterator[Finding]:
    """Check that boxes are in pixels of their images."""
    pairs = [
        (image, instance["bbox"])
        for image in loaded
        for instance in image["instances"]
        if not instance["ignore_flag"]
    ]
    if not pairs:
        return
    sizes = np.array([(image["width"], image["height"]) for image, _ in pairs], float)
    boxes = np.array([box for _, box in pairs], float)
    starts = boxes[:, :2]
    ends = boxes[:, 2:]
    beyond = ((starts < -SLACK) | (ends > sizes + SLACK)).any(axis=1)
    fix = "bbox=[x, y, width, height] in pixels"
    if beyond.any():
        problem = f"{beyond.sum()} of {len(boxes)} boxes of {path} reach beyond their image"
        if _are_corners(starts, ends, sizes):
            yield fail("D411", problem, f"{fix}: these are [x1, y1, x2, y2]")
        else:
            fix = f"{fix}, if the border of the image does not cut off objects"
            yield note("D411", problem, fix)
        return
    part = (ends / sizes).max()
    if part <= 0.5 and len(boxes) >= MIN_BOXES:
        place = f"the upper left {part:.0%} of width and height"
        problem = f"all {len(boxes)} boxes of {path} lie in {place}"
        yield note(
            "D411", problem, f"{fix} of the image, if they are of a smaller copy of the images"
        )


def _are_corners(starts: np.ndarray, ends: np.ndarray, sizes: np.ndarray) -> bool:
    """Return whether boxes would be inside their images if their values were corners."""
    extents = ends - starts
    fit = (extents > starts).all() and (extents <= sizes + SLACK).all()
    far = (starts > sizes / 2).any(axis=1)  # as a width, all of these would be cut off
    return len(starts) >= MIN_BOXES and fit and far.mean() > 0.05
