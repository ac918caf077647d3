"""Checks of a COCO data set: categories, ids, boxes and masks of its jsons, and its photos."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..datasets.coco import Annotation, CocoFile, CocoImage, read_coco
from ..utils.errors import preview
from .findings import Finding, Findings, listed, ok
from .photos import check_photos
from .run_config import ConfiguredData

_SLACK = 2  # pixels by which a box may reach beyond its image
_BOX = "give boxes as [x, y, width, height] in pixels of the image, not as"
# What may be wrong with an object, and how to correct it. An object has the first that fits.
_FAULTS = {
    "D408": (
        "are dropped: outside the image, below a pixel, without area, or ignore=1",
        f"{_BOX} fractions",
    ),
    "D412": (
        "have unusable masks: polygons with fewer than three points, RLE of another size than the "
        "image, or RLE with poly2mask=False",
        "give usable masks, or fine-tune on boxes only, by boxes",
    ),
    "D411": ("reach beyond their image", f"{_BOX} [x1, y1, x2, y2]"),
}


class _Rle(msgspec.Struct):
    size: tuple[float, float]
    counts: str | list[float]


_MASKS = msgspec.json.Decoder(list[list[float]] | _Rle)


def check_coco(dataset: ConfiguredData) -> Findings:
    """Check the json of a data set, the other jsons that score its split, and the photos."""
    scored = [os.path.realpath(path) for path in dataset.split.scored_jsons]
    for path in dict.fromkeys([dataset.json_path, *scored]):
        coco = dataset.coco if path == dataset.json_path else read_coco(Path(path))
        yield from _check_categories(path, coco, dataset)
        if path in scored:
            yield from _check_ids(path, coco)
        yield from _check_objects(path, coco, dataset)
    photos = dataset.list_photos()
    sizes = {path: (image.width, image.height) for path, image in photos.items()}
    yield from check_photos("D315", dataset.loading, sizes)
    labelled = {annotation.image_id for annotation in dataset.coco.annotations}
    name = os.path.basename(dataset.json_path)
    yield ok(f"{len(photos)} images in {name}; {len(photos) - len(labelled)} have no object")


def _check_categories(path: str, coco: CocoFile, dataset: ConfiguredData) -> Findings:
    """Check the names of the categories, and their order, by which mmdet numbers the classes."""
    classes = dataset.classes
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        return listed("FAIL", "D405", twice, "classes are named twice", "name each once")
    names = [category.name for category in coco.categories]
    absent = [name for name in classes if name not in names]
    if absent:
        problem = f"of {len(classes)} classes are not categories of {path}"
        fix = f"metainfo=dict(classes={tuple(names)}) in all data sets, or other names in the json"
        return listed("FAIL", "D405", absent, problem, fix)
    learned = [name for name in names if name in classes]
    pairs = zip(learned, classes, strict=True)
    swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
    if swapped:
        problem = f"classes would be shown as others, since mmdet takes the order of {path}"
        fix = f"list the categories of {path} as {classes}; ids stay"
        return listed("FAIL", "D406", swapped, problem, fix)
    annotated = {annotation.category_id for annotation in coco.annotations}
    used = [category.name for category in coco.categories if category.id in annotated]
    unlearned = [name for name in used if name not in classes]
    problem = f"categories of {path} are left out by the config"
    return listed("note", "D405", unlearned, problem, "add these categories to classes")


def _check_ids(path: str, coco: CocoFile) -> Findings:
    counts = Counter(annotation.id for annotation in coco.annotations)
    wrong = [number for number, count in counts.items() if number == 0 or count > 1]
    problem = f"ids in {path} are 0 or occur twice, which pycocotools confuses"
    return listed("FAIL", "D418", wrong, problem, "number annotations 1, 2, 3, ...")


def _check_objects(path: str, coco: CocoFile, dataset: ConfiguredData) -> Findings:
    """Check the objects that belong to the classes of a data set."""
    images = {image.id: image for image in coco.images}
    names = {entry.id: entry.name for entry in coco.categories if entry.name in dataset.classes}
    objects = [entry for entry in coco.annotations if entry.category_id in names]
    of_all = f"of {len(objects)} objects of {path}"
    by_fault = defaultdict(list)
    for entry in objects:
        by_fault[_find_fault(entry, images[entry.image_id], dataset)].append(entry)
    for code, (problem, fix) in _FAULTS.items():
        wrong = [f"id {e.id} (image {images[e.image_id].file_name})" for e in by_fault[code]]
        level = "FAIL" if code == "D412" or 2 * len(wrong) > len(objects) else "note"
        yield from listed(level, code, wrong, f"{of_all} {problem}", fix)
    if not dataset.split.is_of_tiles:  # at the edges of tiles, parts of objects are crowds
        loaded = [*by_fault[""], *by_fault["D412"], *by_fault["D411"]]
        yield from _check_crowds(loaded, names, of_all, dataset.split.name == "train")


def _find_fault(entry: Annotation, image: CocoImage, dataset: ConfiguredData) -> str:
    """Return the code of what is wrong with an object, or ''."""
    x, y, width, height = entry.bbox
    shown_width = min(x + width, image.width) - max(x, 0)
    shown_height = min(y + height, image.height) - max(y, 0)
    is_visible = min(shown_width, shown_height) > 0 and min(width, height) >= 1
    if entry.ignore or entry.area <= 0 or not is_visible:
        return "D408"
    if dataset.needs_masks and not _has_mask(entry, image, dataset.poly2mask):
        return "D412"
    beyond = max(-x, -y, x + width - image.width, y + height - image.height)
    return "D411" if beyond > _SLACK else ""


def _has_mask(entry: Annotation, image: CocoImage, poly2mask: bool) -> bool:
    """Return whether mmdet and pycocotools can read the mask of an object."""
    try:
        mask = _MASKS.decode(entry.segmentation)
    except msgspec.MsgspecError:
        return False
    if isinstance(mask, _Rle):
        is_kept = poly2mask or bool(entry.iscrowd)  # a crowd is not trained anyway
        return is_kept and mask.size == (image.height, image.width)
    points = mask[0] if mask else []  # pycocotools reads all parts as it reads the first
    return len(points) >= 6 and len(points) % 2 == 0


def _check_crowds(
    objects: Sequence[Annotation], names: Mapping[int, str], of_all: str, is_training: bool
) -> Findings:
    """Report crowds, and fail if a class that is trained has no other objects."""
    crowds = Counter(names[entry.category_id] for entry in objects if entry.iscrowd)
    trained = {names[entry.category_id] for entry in objects if not entry.iscrowd}
    if crowds:
        problem = f"{crowds.total()} {of_all} have iscrowd=1, as CVAT's brush writes it"
        problem += ", and neither train nor score"
        alone = [name for name in crowds if name not in trained]
        problem += f", all of {preview(alone)}" if alone else ""
        level = "FAIL" if alone and is_training else "note"
        yield Finding(level, "D409", problem, "docs/your-own-data.md#coco writes iscrowd=0")
