"""Checks of data sets in COCO's format: ids, categories, boxes, masks and images."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
from mmengine.config import Config

from ..utils.coco import TO_PREDICT, Coco, read_coco
from ..utils.configs import evaluators, find_step, metainfo
from ..utils.errors import preview
from .annotations import Annotations, check_boxes, check_counts
from .findings import Finding, fail, note, ok
from .images import STORED, Photos, check_images, sample
from .masks import check_masks, compact
from .orientation import draw_objects, labels_match_stored


def check_coco(cfg: Config, split: str, dataset: dict) -> Iterator[Finding]:
    """Check the json and the images of a data set, and other jsons that its split is scored by."""
    path = _json_path(dataset)
    step = find_step(dataset.get("pipeline", []), "LoadAnnotations") or {}
    metrics = [str(evaluator.get("metric")) for evaluator in evaluators(cfg, split)]
    needs_masks = step.get("with_mask", False) or any("segm" in metric for metric in metrics)
    classes = metainfo(dataset)["classes"]
    for file in [path, *_scored_jsons(cfg, split, path)]:
        try:
            coco = read_coco(file, convert=compact)
        except ValueError as error:
            fix = "export the file again with this key, or with one id for each entry"
            yield fail("D401", str(error), fix)
            return
        failures = list(_check_ids(file, coco))
        yield from failures
        if failures or isinstance(classes, str):  # another check reports classes that are a text
            return
        yield from _check_categories(file, coco, classes, split)
        annotations = Annotations(file, coco, classes)
        yield from check_boxes(annotations, classes)
        if split != "train":
            yield from check_counts(annotations)
        if needs_masks:
            yield from check_masks(annotations, step.get("poly2mask", True))
        if file == path:
            yield from _check_photos(dataset, annotations)


def image_paths(dataset: dict) -> list[str]:
    """Return the paths of the images that the json of a data set lists."""

    def drop_annotation(entry: dict) -> dict | None:  # annotations take most of the memory
        return None if "image_id" in entry else entry

    coco = read_coco(_json_path(dataset), TO_PREDICT, convert=drop_annotation)
    return [_image_path(dataset, image) for image in coco["images"]]


def _json_path(dataset: dict) -> str:
    return os.path.join(dataset.get("data_root") or "", dataset["ann_file"])


def _scored_jsons(cfg: Config, split: str, path: str) -> list[str]:
    """Return the jsons of a split's evaluators, without the json at a path."""
    files = [evaluator.get("ann_file") for evaluator in evaluators(cfg, split)]
    others = {os.path.realpath(file): file for file in files if file}
    others.pop(os.path.realpath(path), None)
    return list(others.values())


def _image_path(dataset: dict, image: dict) -> str:
    prefix = (dataset.get("data_prefix") or {}).get("img", "")
    return os.path.join(dataset.get("data_root") or "", prefix, image["file_name"])


def _check_photos(dataset: dict, annotations: Annotations) -> Iterator[Finding]:
    images = annotations.coco["images"]
    paths = [_image_path(dataset, image) for image in images]
    shapes = {
        path: (image["height"], image["width"]) for path, image in zip(paths, images, strict=True)
    }
    photos = Photos(dataset, list(shapes))
    yield from check_images(photos, shapes)
    yield from _check_orientation(photos, paths, annotations)
    empty = len(images) - len(np.unique(annotations.images[annotations.images >= 0]))
    yield ok(f"{len(images)} images; {empty} have no object")


def _check_orientation(
    photos: Photos, paths: Sequence[str], annotations: Annotations
) -> Iterator[Finding]:
    """Check that boxes were not drawn over photos as they are stored, if mmcv turns them.

    Args:
        paths: Paths of the images of the json.
    """
    turned = sorted(photos.turned) if photos.is_turned else []
    drawn = []
    for path in sample(turned):
        rows = np.flatnonzero(annotations.is_loaded & (annotations.images == paths.index(path)))
        objects = [annotations.entries[row] for row in rows]
        side = max(photos.infos[path].shape(is_turned=False))  # enough for both orientations
        drawn.append((path, draw_objects(objects, (side, side))))
    if labels_match_stored(drawn):
        problem = f"boxes of {annotations.path} were drawn over photos as stored, but mmcv turns"
        yield fail("D315", f"{problem} {len(turned)} by EXIF: {preview(turned)}", STORED)


def _check_ids(path: str, coco: Coco) -> Iterator[Finding]:
    """Check the ids by which pycocotools finds entries and stores matches."""
    ids = [annotation.get("id") for annotation in coco["annotations"]]
    invalid = [annotation_id for annotation_id in ids if not _marks_match(annotation_id)]
    fix = "number the annotations 1, 2, 3, ..."
    if invalid:
        example = f"such as {invalid[0]!r}, which pycocotools counts as missed"
        problem = f"{len(invalid)} annotations of {path} have no number above 0 as id"
        yield fail("D418", f"{problem}, {example}", fix)
    elif len(set(ids)) < len(ids):
        problem = f"{len(ids) - len(set(ids))} annotations of {path} have the id of another"
        yield fail("D418", f"{problem}: pycocotools confuses them", fix)


def _marks_match(annotation_id: object) -> bool:
    """Return whether an id is a number other than 0. pycocotools stores the id of the object that
    a prediction matches, and 0 where nothing matches.
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
    if len(set(learned)) < len(learned):
        yield from _name_repeated(path, coco, learned)
        return
    absent = [name for name in classes if name not in names]
    annotated_ids = {annotation["category_id"] for annotation in coco["annotations"]}
    left_out = [
        category["name"]
        for category in coco["categories"]
        if category["name"] not in classes and category["id"] in annotated_ids
    ]
    if split == "train":  # the other jsons follow the order that it learns
        fix = f"metainfo=dict(classes={tuple(names if absent else learned)}) in all data sets"
    else:
        fix = f"list the categories of {path} as {tuple(classes)}; ids stay"
    if absent:
        problem = f"{len(absent)} of {len(classes)} classes are not categories of {path}"
        instead = f", which has {preview(left_out)}" if left_out else ""
        yield fail("D405", f"{problem}: {preview(absent)}{instead}", fix)
    elif learned != list(classes):
        pairs = zip(learned, classes, strict=False)
        swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
        order = f"mmdet makes a class of each category in the order of {path}"
        yield fail("D406", f"{order}, and would show {preview(swapped)}", fix)
    elif left_out:
        problem = f"the config leaves out categories of {path}: {preview(left_out)}"
        yield note("D405", problem, "add these categories to classes")


def _name_repeated(path: str, coco: Coco, learned: Sequence[str]) -> Iterator[Finding]:
    """Name each class that several categories have, of which mmdet makes several classes."""
    for name in dict.fromkeys(learned):
        ids = [category["id"] for category in coco["categories"] if category["name"] == name]
        if len(ids) > 1:
            problem = f"{path} has {len(ids)} categories named {name!r}, of the ids {preview(ids)}"
            remedy = f"keep one, give its id to the annotations, and name {name!r} once"
            reason = f"{problem}: mmdet makes a class of each"
            yield fail("D406", reason, f"{remedy} in metainfo.classes")
