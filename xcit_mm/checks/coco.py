"""Checks of data sets in COCO's format: ids, categories, boxes, masks and images."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
from mmengine.config import Config

from ..utils.coco import TO_PREDICT, Coco, read_coco
from ..utils.configs import evaluators, find_step, metainfo
from ..utils.errors import preview
from .boxes import Boxes, check_boxes
from .findings import Finding, fail, note, ok
from .images import STORED, Photos, check_images, sample
from .masks import check_masks, compact
from .orientation import draw_objects, fit_stored


def check_coco(cfg: Config, split: str, dataset: dict) -> Iterator[Finding]:
    """Check a data set of a split against its json, also against another json that scores, and its
    images.
    """
    path = _json_path(dataset)
    scored = [evaluator.get("ann_file") for evaluator in evaluators(cfg, split)]
    files = {os.path.realpath(file): file for file in [path, *filter(None, scored)]}
    boxes = None
    for file in files.values():
        try:
            coco = read_coco(file, convert=compact)
        except ValueError as error:
            fix = "export the file again with this key, or with one id for each entry"
            yield fail("D401", str(error), fix)
            return
        failures = [*_check_ids(file, coco)]
        yield from failures
        classes = metainfo(dataset)["classes"]
        if failures or isinstance(classes, str):  # check_classes reports a string
            return
        yield from _check_categories(file, coco, classes, split)
        boxes = Boxes(file, coco, classes)
        yield from check_boxes(boxes, classes, is_scored=split != "train")
        if _needs_masks(cfg, split, dataset):
            step = find_step(dataset.get("pipeline", []), "LoadAnnotations") or {}
            yield from check_masks(boxes, step.get("poly2mask", True))
        if file == path:
            used = _used_images(boxes, dataset)
            shapes = {
                _image_path(dataset, image): (image["height"], image["width"]) for image in used
            }
            photos = Photos(dataset, list(shapes))
            yield from check_images(photos, shapes)
            yield from _check_orientation(dataset, photos, boxes)
            empty = len(coco["images"]) - len(np.unique(boxes.images[boxes.images >= 0]))
            count = f"{len(used)} of {len(coco['images'])} images are used"
            yield ok(f"{count}; {empty} have no object")


def image_paths(dataset: dict) -> list[str]:
    """Return the paths of the images that the json of a data set lists."""

    def drop_annotations(entry: dict) -> dict | None:
        return None if "image_id" in entry else entry

    coco = read_coco(_json_path(dataset), TO_PREDICT, convert=drop_annotations)
    return [_image_path(dataset, image) for image in coco["images"]]


def _json_path(dataset: dict) -> str:
    return os.path.join(dataset.get("data_root") or "", dataset["ann_file"])


def _image_path(dataset: dict, image: dict) -> str:
    prefix = (dataset.get("data_prefix") or {}).get("img", "")
    return os.path.join(dataset.get("data_root") or "", prefix, image["file_name"])


def _used_images(boxes: Boxes, dataset: dict) -> list[dict]:
    """List the images that mmdet does not leave out by `filter_cfg`."""
    images = boxes.coco["images"]
    filters = dataset.get("filter_cfg")
    if not filters or dataset.get("test_mode"):
        return images
    min_size = filters.get("min_size", 0)
    used = np.ones(len(images), bool)
    if filters.get("filter_empty_gt"):
        used[:] = False
        used[boxes.images[(boxes.images >= 0) & (boxes.labels >= 0)]] = True
    return [
        image
        for image, is_used in zip(images, used, strict=True)
        if is_used and min(image["width"], image["height"]) >= min_size
    ]


def _check_orientation(dataset: dict, photos: Photos, boxes: Boxes) -> Iterator[Finding]:
    """Check that boxes were not drawn over photos as they are stored, if mmcv turns them."""
    images = boxes.coco["images"]
    places = {_image_path(dataset, image): place for place, image in enumerate(images)}
    turned = sorted(photos.turned) if photos.is_turned else []
    drawn = []
    for path in sample(turned):
        side = max(photos.facts[path].shape(is_turned=False))
        rows = np.flatnonzero(boxes.kept & (boxes.images == places[path]))
        objects = [boxes.annotations[row] for row in rows]
        drawn.append((path, draw_objects(objects, (side, side))))
    if fit_stored(drawn):
        problem = f"boxes of {boxes.path} were drawn over photos as stored, but mmcv turns"
        yield fail("D315", f"{problem} {len(turned)} by EXIF: {preview(turned)}", STORED)


def _needs_masks(cfg: Config, split: str, dataset: dict) -> bool:
    """Return whether a data set loads masks, or an evaluator scores them."""
    step = find_step(dataset.get("pipeline", []), "LoadAnnotations") or {}
    metrics = [str(evaluator.get("metric")) for evaluator in evaluators(cfg, split)]
    return step.get("with_mask", False) or any("segm" in metric for metric in metrics)


def _check_ids(path: str, coco: Coco) -> Iterator[Finding]:
    """Check the ids by which pycocotools finds entries and stores matches."""
    ids = [annotation.get("id") for annotation in coco["annotations"]]
    invalid = [value for value in ids if not _marks_match(value)]
    fix = "number the annotations 1, 2, 3, ..."
    if invalid:
        example = f"such as {invalid[0]!r}, which pycocotools counts as missed"
        problem = f"{len(invalid)} annotations of {path} have no number above 0 as id"
        yield fail("D418", f"{problem}, {example}", fix)
    elif len(set(ids)) < len(ids):
        problem = f"{len(ids) - len(set(ids))} annotations of {path} have the id of another"
        yield fail("D418", f"{problem}: pycocotools confuses them", fix)
    for name in ("images", "categories"):
        is_text = {isinstance(entry["id"], str) for entry in coco[name]}
        if len(is_text) > 1:
            problem = f"{path} has {name} with numbers and with texts as ids"
            fix = "write all as numbers, also in the annotations"
            yield fail("D418", f"{problem}, which pycocotools does not find", fix)


def _marks_match(annotation_id: object) -> bool:
    """Return whether pycocotools, which stores the id of a matched object as a number, sees that
    the object is matched.
    """
    try:
        return float(annotation_id) != 0  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _check_categories(
    path: str, coco: Coco, classes: Sequence[str], split: str
) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order
    of the json.
    """
    names = [category["name"] for category in coco["categories"]]
    learned = [name for name in names if name in classes]
    repeated = next((name for name in learned if learned.count(name) > 1), None)
    if repeated is not None:
        yield _repeated_category(path, coco, repeated)
        return
    absent = [name for name in classes if name not in names]
    annotated = {annotation["category_id"] for annotation in coco["annotations"]}
    left_out = [
        category["name"]
        for category in coco["categories"]
        if category["name"] not in classes and category["id"] in annotated
    ]
    leaves_out = f"the config leaves out categories of {path}: {preview(left_out)}"
    fix = f"list the categories of {path} with the names and in the order of the classes"
    fix = f"{fix}, {tuple(classes)}; ids stay"
    if split == "train":  # the other jsons may follow what it learns
        own = tuple(names if absent else learned)
        fix = f"metainfo=dict(classes={own}) in all data sets, or {fix}"
    if absent:
        problem = f"{len(absent)} of {len(classes)} classes are not categories of {path}"
        problem = f"{problem}: {preview(absent)}"
        if left_out:
            problem = f"{problem}; {leaves_out}"
        yield fail("D405", problem, fix)
    elif learned != list(classes):
        pairs = zip(learned, classes, strict=False)
        swapped = [f"{theirs} as {ours}" for theirs, ours in pairs if theirs != ours]
        order = f"mmdet makes a class of each category in the order of {path}"
        yield fail("D406", f"{order}, and would show {preview(swapped)}", fix)
    elif left_out:
        yield note("D405", leaves_out, "add these categories to classes")


def _repeated_category(path: str, coco: Coco, name: str) -> Finding:
    """Report categories of one name, of which mmdet makes a class each."""
    ids = [category["id"] for category in coco["categories"] if category["name"] == name]
    annotated = {annotation["category_id"] for annotation in coco["annotations"]}
    used = [value for value in ids if value in annotated]
    kept = (used or ids)[0]
    others = [value for value in ids if value != kept]
    fix = f"remove category {preview(others)}"
    if len(used) > 1:
        fix = f"{fix}, whose annotations get category_id={kept!r}"
    problem = f"{path} has {len(ids)} categories named {name!r}, of the ids {preview(ids)}"
    fix = f"{fix}, and name {name!r} once in metainfo.classes"
    return fail("D406", f"{problem}: mmdet makes a class of each", fix)
