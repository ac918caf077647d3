"""Checks of data sets in COCO's format: errors in the json, and annotations that mmdet drops."""

import math
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence

from mmengine.config import Config

from ..utils.configs import evaluators, metainfo
from ..utils.errors import preview
from .boxes import MAX_WRONG, check_boxes
from .coco_json import Coco, load_instances
from .findings import Finding, fail, note, ok
from .images import check_images, pipeline_step

# Reasons for which mmdet drops annotations without a message. The first two do not occur in a correct json.
NO_IMAGE = "with an unknown image_id"
NO_CATEGORY = "with an unknown category_id"
THIN = "with boxes less than a pixel wide or high"
NO_AREA = "without area"
OUTSIDE = "outside the image"
BY_CLASS = "left out by the class of the data set"
# Reasons that the config gives, or that another finding reports.
NO_CLASS = "of categories outside the classes"
IGNORED = "marked ignore"
FILTERED = "in images that filter_cfg leaves out"

FIXES = {
    NO_IMAGE: "correct image_id, or remove these annotations",
    NO_CATEGORY: "correct category_id: the id of a category, not its position in the list",
    THIN: "bbox=[x, y, width, height] in pixels, not relative to the image",
    NO_AREA: "area=width * height, or the area of the mask, in pixels",
    OUTSIDE: "bbox=[x, y, width, height] in pixels of the image",
    BY_CLASS: "read parse_data_info of the class",
}
EMPTY = "annotate images, or correct ann_file, metainfo.classes and filter_cfg"


def check_coco(cfg: Config, split: str, dataset: dict, read: Callable[[str], Coco]) -> Iterator[Finding]:
    """Check a data set of a split against its json, which `read` reads as `read_coco`, and its images."""
    root = dataset.get("data_root") or ""
    path = os.path.join(root, dataset["ann_file"])
    try:
        coco = read(path)
    except ValueError as error:
        yield fail("D401", str(error), "export the file again, with one id for each entry")
        return
    wrong = list(_check_keys(path, dataset, coco, scored=split == "val"))
    if wrong:
        yield from wrong
        return
    classes = metainfo(dataset)["classes"]
    ids = used = {image["id"] for image in coco["images"]}
    if not isinstance(classes, str):  # check_classes reports a string
        yield from _check_categories(coco, classes)
        loaded = load_instances(dataset, coco)
        used = {image["img_id"] for image in loaded}
        yield from _check_instances(path, classes, coco, loaded)
    for evaluator in evaluators(cfg, split):
        scored = evaluator.get("ann_file")
        if scored and not ids <= {image["id"] for image in read(scored)["images"]}:
            option = f"{split}_evaluator.ann_file"
            yield fail("D416", f"{option}={scored} lacks images of {path}", f"--cfg-options {option}={path}")
    repeated = len(ids) - len({image["file_name"] for image in coco["images"]})
    if repeated:
        text = f"{repeated} images of {path} repeat the file of another image"
        yield note("D415", text, "one image for each file, with all annotations of the file")
    folder = os.path.join(root, dataset["data_prefix"]["img"])
    images = [
        dict(img_path=os.path.join(folder, image["file_name"]), shape=(image["height"], image["width"]))
        for image in coco["images"]
        if image["id"] in used
    ]
    yield from check_images(dataset, images)


def _check_keys(path: str, dataset: dict, coco: Coco, scored: bool) -> Iterator[Finding]:
    """Check the keys that mmdet reads, and the types of their values."""
    with_mask = (pipeline_step(dataset, "LoadAnnotations") or {}).get("with_mask")
    needed = dict(
        categories=["name"],
        images=["file_name", "height", "width"],
        annotations=["image_id", "category_id", "bbox", "area"]
        + ["segmentation"] * bool(with_mask)
        + ["iscrowd"] * scored,
    )
    for kind, keys in needed.items():
        for key in keys:
            values = [entry.get(key) for entry in coco[kind]]
            missing = values.count(None) + values.count([])
            if missing:
                yield fail("D402", f"{missing} {kind} of {path} have no {key}", f"add {key}: mmdet reads it")
    boxes = [annotation.get("bbox") for annotation in coco["annotations"]]
    wrong = [box for box in boxes if box and not _is_box(box)]
    if wrong:
        text = f"{len(wrong)} annotations of {path} have a bbox such as {wrong[0]}"
        yield fail("D403", text, "bbox=[x, y, width, height], four numbers")
    masks = [entry.get("segmentation") for entry in coco["annotations"]] if with_mask else []
    flat = [mask for mask in masks if mask and isinstance(mask, list) and not isinstance(mask[0], list)]
    if flat:
        text = f"{len(flat)} segmentations of {path} are not lists of polygons"
        yield fail("D404", text, "segmentation=[[x1, y1, x2, y2, ...], ...]")


def _is_box(bbox: Sequence) -> bool:
    try:
        return len(bbox) == 4 and all(map(math.isfinite, bbox))
    except TypeError:
        return False


def _check_categories(coco: Coco, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order of the json."""
    by_id = {category["id"]: category["name"] for category in coco["categories"]}
    names = list(by_id.values())
    counts = Counter(annotation["category_id"] for annotation in coco["annotations"])
    twice = {number: name for number, name in by_id.items() if name in classes and names.count(name) > 1}
    if twice:
        empty = [number for number in twice if not counts[number]]
        yield fail(
            "D417",
            f"{len(twice)} categories have the name of another, to mmdet they are different classes: "
            + ", ".join(f"id {number} is {name}" for number, name in twice.items()),
            (f"remove category {preview(empty)} from the json, which has no annotations" if empty else "")
            or "give all annotations of a name one category_id, and remove the other categories",
        )
        return
    learned = [name for name in names if name in classes]
    left_out = [
        f"{name} ({counts[number]} annotations)"
        for number, name in by_id.items()
        if name not in classes and counts[number]
    ]
    absent = [name for name in classes if name not in names]
    if absent:
        yield fail(
            "D405",
            f"{len(absent)} of {len(classes)} classes are not categories of the json: {preview(absent)}"
            + (f"; the config leaves out its {preview(left_out)}" if left_out else ""),
            f"metainfo=dict(classes={tuple(names)}), the categories in the order of the json, or add the classes to it",
        )
    elif learned != list(classes):
        swapped = [f"{theirs} as {ours}" for theirs, ours in zip(learned, classes, strict=False) if theirs != ours]
        yield fail(
            "D406",
            "mmdet numbers categories in the order of the json, not of the classes: it would show "
            + preview(swapped or learned),
            f"metainfo=dict(classes={tuple(dict.fromkeys(learned))}), the order of the json",
        )
    elif left_out:
        yield note("D407", f"the classes leave out categories: {preview(left_out)}", "add these categories to classes")


def _check_instances(path: str, classes: Sequence[str], coco: Coco, loaded: Sequence[dict]) -> Iterator[Finding]:
    """Compare the annotations of the images that mmdet has loaded with those of the json."""
    instances = [instance for image in loaded for instance in image["instances"]]
    reasons = _reasons(coco, classes, {image["img_id"] for image in loaded})
    dropped = Counter(filter(None, reasons))
    if dropped.total() != len(reasons) - len(instances):  # a class derived from mmdet's has its own rules
        dropped = Counter({BY_CLASS: len(reasons) - len(instances)})
    yield from _check_dropped(path, dropped, len(reasons), bool(loaded))
    objects = Counter(instance["bbox_label"] for instance in instances if not instance["ignore_flag"])
    if instances and not objects:
        text = f"all {len(instances)} annotations of {path} have iscrowd=1, and a model learns nothing from them"
        yield fail("D409", text, "iscrowd=0 for single objects")
    missing = [name for label, name in enumerate(classes) if not objects[label]]
    if objects and missing:
        yield note("D410", f"{path} has no objects of {preview(missing)}", "annotate objects, or remove the classes")
    kept = [a for a, why in zip(coco["annotations"], reasons, strict=True) if not why and not a.get("iscrowd")]
    if kept:
        yield from check_boxes(path, kept, coco["images"])
    yield ok(
        f"{len(loaded)} of {len(coco['images'])} images are used, with {objects.total()} objects"
        + (f" and {len(instances) - objects.total()} crowds" if objects.total() < len(instances) else "")
    )


def _reasons(coco: Coco, classes: Sequence[str], used: Container) -> list[str]:
    """Return the reason for which mmdet drops each annotation, or ''. It uses the images with the ids `used`."""
    images = {image["id"]: image for image in coco["images"]}
    known = {category["id"]: category["name"] in classes for category in coco["categories"]}

    def reason(annotation: dict) -> str:
        image = images.get(annotation["image_id"])
        if image is None:
            return NO_IMAGE
        if annotation["category_id"] not in known:
            return NO_CATEGORY
        if not known[annotation["category_id"]]:
            return NO_CLASS
        if annotation.get("ignore"):
            return IGNORED
        x, y, width, height = annotation["bbox"]
        if width < 1 or height < 1:
            return THIN
        if annotation["area"] <= 0:
            return NO_AREA
        if not (x < image["width"] and y < image["height"] and x + width > 0 and y + height > 0):
            return OUTSIDE
        return "" if annotation["image_id"] in used else FILTERED

    return [reason(annotation) for annotation in coco["annotations"]]


def _check_dropped(path: str, dropped: Counter[str], number: int, used: bool) -> Iterator[Finding]:
    """Report the annotations of a json that mmdet drops, and the reasons. The images may be used without them."""
    left = number - dropped.total()
    named = [(why, times) for why, times in dropped.most_common() if why in FIXES or not left]
    if left and not named:
        return
    text = f"mmdet loads {left} of {number} annotations of {path}"
    text += ": " + ", ".join(f"{times} {why}" for why, times in named) if named else ""
    fix = FIXES.get(named[0][0], EMPTY) if named else EMPTY
    useless = not used or (number and not left)
    wrong = dropped[NO_IMAGE] or dropped[NO_CATEGORY] or dropped[NO_AREA] > MAX_WRONG * number
    yield (fail if useless or wrong else note)("D408", text, fix)
