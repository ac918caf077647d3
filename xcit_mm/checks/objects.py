"""Checks of the objects of a COCO json: boxes and masks that mmdet drops or misunderstands."""

from collections.abc import Sequence

import msgspec

from ..datasets.coco import Annotation, CocoFile, CocoImage
from ..utils.errors import preview
from .findings import Finding, Findings, listed
from .run_config import ConfiguredData

_SLACK = 2  # pixels by which a box may reach beyond its image
_FORM = "[x, y, width, height] in pixels of the image"


class _Rle(msgspec.Struct):
    size: tuple[float, float]
    counts: str | list[float]


_MASKS = msgspec.json.Decoder(list[list[float]] | _Rle)
_Objects = Sequence[tuple[Annotation, CocoImage]]


def check_objects(path: str, coco: CocoFile, dataset: ConfiguredData) -> Findings:
    """Check the objects of a json that belong to the classes of a data set."""
    images = {image.id: image for image in coco.images}
    learned = {category.id for category in coco.categories if category.name in dataset.classes}
    objects = [
        (entry, images[entry.image_id])
        for entry in coco.annotations
        if entry.category_id in learned
    ]
    owner = f"of {len(objects)} objects of {path}"
    dropped = [pair for pair in objects if _is_dropped(*pair)]
    loaded = [pair for pair in objects if not _is_dropped(*pair)]
    level = "FAIL" if 2 * len(dropped) >= len(objects) else "note"
    problem = f"{owner} are dropped: outside the image, below a pixel, without area, or ignore=1"
    fix = f"give boxes as {_FORM}, not as fractions"
    yield from listed(level, "D408", _names(dropped), problem, fix)
    beyond = [pair for pair in loaded if _reaches_beyond(*pair)]
    level = "FAIL" if 2 * len(beyond) >= len(objects) else "note"
    fix = f"give boxes as {_FORM}, not as [x1, y1, x2, y2]"
    yield from listed(level, "D411", _names(beyond), f"{owner} reach beyond their image", fix)
    step = dataset.annotation_step
    if dataset.split.scores_masks or step.get("with_mask"):
        yield from _check_masks(loaded, owner, poly2mask=step.get("poly2mask", True))
    if not dataset.split.is_of_tiles:  # at the edges of tiles, parts of objects are crowds
        yield from _check_crowds(loaded, owner, coco, dataset.split.name == "train")


def _check_masks(objects: _Objects, owner: str, poly2mask: bool) -> Findings:
    unread = [pair for pair in objects if not _has_mask(*pair, poly2mask)]
    problem = f"{owner} have unusable masks: polygons with fewer than three points, RLE of another "
    problem += "size than the image, or RLE with poly2mask=False"
    fix = "give usable masks, or fine-tune on boxes only, by boxes"
    return listed("FAIL", "D412", _names(unread), problem, fix)


def _check_crowds(objects: _Objects, owner: str, coco: CocoFile, is_training: bool) -> Findings:
    """Report crowds, and fail if a class that is trained has no other objects."""
    crowds = [entry for entry, _ in objects if entry.iscrowd]
    trained = {entry.category_id for entry, _ in objects if not entry.iscrowd}
    ids = {entry.category_id for entry in crowds} - trained
    names = [category.name for category in coco.categories if category.id in ids]
    if crowds:
        level = "FAIL" if names and is_training else "note"
        problem = f"{len(crowds)} {owner} have iscrowd=1, as CVAT's brush writes it"
        problem += ", and neither train nor score"
        problem += f", all of {preview(names)}" if names else ""
        yield Finding(level, "D409", problem, "docs/your-own-data.md#coco writes iscrowd=0")


def _names(objects: _Objects) -> list[str]:
    return [f"id {entry.id} (image {image.file_name})" for entry, image in objects]


def _is_dropped(entry: Annotation, image: CocoImage) -> bool:
    """Return whether mmdet drops an object, whatever its class."""
    x, y, width, height = entry.bbox
    shown_width = min(x + width, image.width) - max(x, 0)
    shown_height = min(y + height, image.height) - max(y, 0)
    is_visible = min(shown_width, shown_height) > 0 and min(width, height) >= 1
    return bool(entry.ignore) or entry.area <= 0 or not is_visible


def _reaches_beyond(entry: Annotation, image: CocoImage) -> bool:
    x, y, width, height = entry.bbox
    beyond = max(-x, -y, x + width - image.width, y + height - image.height)
    return beyond > _SLACK


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
