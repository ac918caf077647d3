"""Checks of data sets in COCO's format: what mmdet makes of the json, and what no right json holds."""

import contextlib
import gc
import math
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence

from mmengine.config import Config

from ..utils.configs import evaluators, metainfo
from ..utils.errors import preview
from .boxes import FEW, check_boxes
from .coco_json import Coco, load_instances
from .findings import Finding, fail, note, ok
from .images import check_images, pipeline_step

__all__ = ["check_coco"]

# Why mmdet drops annotations, without a word. The first two no right json has.
NO_IMAGE = "with an image_id that no image has"
NO_CATEGORY = "with a category_id that no category has"
THIN = "with boxes less than a pixel wide or high"
NO_AREA = "without area"
OUTSIDE = "outside their image"
ITSELF = "left out by the data set's own class"
# What the config asks for, or a line of its own tells.
NO_CLASS = "of categories that are no classes"
IGNORED = "marked ignore"
FILTERED = "in images that filter_cfg leaves out"

FIXES = {
    NO_IMAGE: "correct image_id, or remove them",
    NO_CATEGORY: "correct category_id: the id of a category, not its place in the list",
    THIN: "bbox=[x, y, width, height] in pixels, not relative to the image",
    NO_AREA: "area=width * height, or that of the mask, in pixels",
    OUTSIDE: "bbox=[x, y, width, height] in pixels of the image",
    ITSELF: "see its parse_data_info",
}
EMPTY = "annotate images, or correct ann_file, metainfo.classes and filter_cfg"


def check_coco(cfg: Config, split: str, dataset: dict, read: Callable[[str], Coco]) -> Iterator[Finding]:
    """Check a data set of a split against its json and its images.

    Args:
        read: `read_coco`, which may remember files.
    """
    with _no_garbage():
        yield from _check_coco(cfg, split, dataset, read)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Do not look for garbage: among the millions of objects of a json there is none, and the search takes seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_coco(cfg: Config, split: str, dataset: dict, read: Callable[[str], Coco]) -> Iterator[Finding]:
    root = dataset.get("data_root") or ""
    path = os.path.join(root, dataset["ann_file"])
    coco = read(path)
    lacking = list(_check_keys(split, path, dataset, coco))
    yield from lacking
    if lacking:
        return
    if not isinstance(metainfo(dataset)["classes"], str):  # check_classes tells
        yield from _check_categories(split, coco, metainfo(dataset)["classes"])
        yield from _check_instances(split, path, dataset, coco)
    ids = {image["id"] for image in coco["images"]}
    for evaluator in evaluators(cfg, split):
        scored = evaluator.get("ann_file")
        if scored and not ids <= {image["id"] for image in read(scored)["images"]}:
            yield fail(
                f"{split}: images of {path} are not in the {split}_evaluator's {scored}",
                f"--cfg-options {split}_evaluator.ann_file={path}",
            )
    repeated = len(ids) - len({image["file_name"] for image in coco["images"]})
    if repeated:
        yield note(
            f"{split}: {repeated} images of {path} have the file of another one", "one image a file, for all of it"
        )
    folder = os.path.join(root, dataset["data_prefix"]["img"])
    images = [
        dict(img_path=os.path.join(folder, image["file_name"]), shape=(image["height"], image["width"]))
        for image in coco["images"]
    ]
    yield from check_images(split, dataset, images)


def _check_keys(split: str, path: str, dataset: dict, coco: Coco) -> Iterator[Finding]:
    """Check that everything has what mmdet reads of it."""
    with_mask = (pipeline_step(dataset, "LoadAnnotations") or {}).get("with_mask")
    needed = dict(
        categories=["name"],
        images=["file_name", "height", "width"],
        annotations=["image_id", "category_id", "bbox", "area"]
        + ["segmentation"] * bool(with_mask)
        + ["iscrowd"] * (split == "val"),
    )
    for kind, keys in needed.items():
        for key in keys:
            values = [one.get(key) for one in coco[kind]]
            lacking = values.count(None) + values.count([])
            if lacking:
                yield fail(f"{split}: {lacking} {kind} of {path} have no {key}", "add it, mmdet needs it")
    wrong = [one["bbox"] for one in coco["annotations"] if one.get("bbox") and not _is_box(one["bbox"])]
    if wrong:
        yield fail(
            f"{split}: {len(wrong)} annotations of {path} have a bbox such as {wrong[0]}",
            "bbox=[x, y, width, height], four numbers",
        )
    flat = sum(bool(with_mask) and _is_flat(one.get("segmentation")) for one in coco["annotations"])
    if flat:
        yield fail(f"{split}: {flat} segmentations of {path} are no lists of polygons", "[[x1, y1, x2, y2, ...], ...]")


def _is_box(bbox: Sequence) -> bool:
    try:
        return len(bbox) == 4 and all(map(math.isfinite, bbox))
    except TypeError:
        return False


def _is_flat(segmentation: object) -> bool:
    return isinstance(segmentation, list) and bool(segmentation) and not isinstance(segmentation[0], list)


def _check_categories(split: str, coco: Coco, classes: Sequence[str]) -> Iterator[Finding]:
    """mmdet takes the categories whose names are classes, and numbers them as they come in the json."""
    by_id = {one["id"]: one["name"] for one in coco["categories"]}
    names = list(by_id.values())
    learnt = [name for name in names if name in classes]
    counts = Counter(by_id.get(one["category_id"]) for one in coco["annotations"])
    left_out = [f"{name} ({counts[name]} annotations)" for name in names if name not in classes and counts[name]]
    absent = [name for name in classes if name not in names]
    if absent:
        yield fail(
            f"{split}: {len(absent)} of {len(classes)} classes are no category of the json: {preview(absent)}"
            + (f"; left out are its {preview(left_out)}" if left_out else ""),
            f"metainfo=dict(classes={tuple(names)}), the json's categories in its order, or add these to the json",
        )
    elif learnt != list(classes):
        swapped = [f"{theirs} as {ours}" for theirs, ours in zip(learnt, classes, strict=False) if theirs != ours]
        yield fail(
            f"{split}: mmdet numbers categories by the json, whose order is not that of the classes: it would show "
            + preview(swapped or learnt),
            f"metainfo=dict(classes={tuple(dict.fromkeys(learnt))}), the json's order",
        )
    elif left_out:
        yield note(
            f"{split}: categories that are no classes are left out: {preview(left_out)}", "add them to the classes"
        )


def _check_instances(split: str, path: str, dataset: dict, coco: Coco) -> Iterator[Finding]:
    """Compare what mmdet's data set holds with what is in the json."""
    classes = metainfo(dataset)["classes"]
    loaded = load_instances(dataset, coco)
    instances = [instance for image in loaded for instance in image["instances"]]
    reasons = _reasons(coco, classes, {image["img_id"] for image in loaded})
    dropped = Counter(filter(None, reasons))
    if dropped.total() != len(reasons) - len(instances):  # a class that is derived from mmdet's has rules of its own
        dropped = Counter({ITSELF: len(reasons) - len(instances)})
    yield from _check_dropped(split, path, dropped, len(reasons))
    objects = Counter(instance["bbox_label"] for instance in instances if not instance["ignore_flag"])
    if instances and not objects:
        yield fail(
            f"{split}: all {len(instances)} annotations of {path} are iscrowd, from which nothing is learnt",
            "iscrowd=0 for single objects",
        )
    missing = [name for label, name in enumerate(classes) if not objects[label]]
    if objects and missing:
        yield note(f"{split}: {path} has no objects of {preview(missing)}", "annotate some, or leave out the classes")
    kept = [one for one, why in zip(coco["annotations"], reasons, strict=True) if not why and not one.get("iscrowd")]
    if kept:
        yield from check_boxes(split, path, kept, coco["images"])
    yield ok(
        f"{split}: {len(loaded)} of {len(coco['images'])} images are used, with {objects.total()} objects"
        + (f" and {len(instances) - objects.total()} crowds" if objects.total() < len(instances) else "")
    )


def _reasons(coco: Coco, classes: Sequence[str], used: Container) -> list[str]:
    """Why mmdet drops each annotation, '' if it does not.

    Args:
        used: Ids of the images that are not left out.
    """
    images = {image["id"]: image for image in coco["images"]}
    known = {one["id"]: one["name"] in classes for one in coco["categories"]}

    def reason(one: dict) -> str:
        image = images.get(one["image_id"])
        if image is None:
            return NO_IMAGE
        if one["category_id"] not in known:
            return NO_CATEGORY
        if not known[one["category_id"]]:
            return NO_CLASS
        if one.get("ignore"):
            return IGNORED
        x, y, width, height = one["bbox"]
        if width < 1 or height < 1:
            return THIN
        if one["area"] <= 0:
            return NO_AREA
        if not (x < image["width"] and y < image["height"] and x + width > 0 and y + height > 0):
            return OUTSIDE
        return "" if one["image_id"] in used else FILTERED

    return [reason(one) for one in coco["annotations"]]


def _check_dropped(split: str, path: str, dropped: Counter[str], number: int) -> Iterator[Finding]:
    """Say how many annotations of a json mmdet drops, and why."""
    left = number - dropped.total()
    told = [(why, times) for why, times in dropped.most_common() if why in FIXES or not left]
    if left and not told:
        return
    text = f"{split}: mmdet loads {left} of {number} annotations of {path}"
    text += ": " + ", ".join(f"{times} {why}" for why, times in told) if told else ""
    fix = FIXES.get(told[0][0], EMPTY) if told else EMPTY
    broken = sum(dropped[why] for why in (THIN, NO_AREA, OUTSIDE))
    if not left or dropped[NO_IMAGE] or dropped[NO_CATEGORY] or broken > FEW * number:
        yield fail(text, fix)
    else:
        yield note(text, fix)
