"""Checks of the objects of a COCO json: boxes and masks that mmdet drops or misunderstands."""

from collections.abc import Iterator, Sequence

import msgspec

from ..datasets.coco import Annotation, CocoFile, CocoImage
from ..utils.errors import preview
from .findings import Finding, listed
from .run_config import ConfiguredData, ConfiguredSplit

_SLACK = 2  # pixels by which a box may reach beyond its image
_FORM = "[x, y, width, height] in pixels of the image"


class _Rle(msgspec.Struct):
    size: tuple[float, float]
    counts: str | list[float]


_MASKS = msgspec.json.Decoder(list[list[float]] | _Rle)


def check_objects(
    path: str, coco: CocoFile, dataset: ConfiguredData, split: ConfiguredSplit
) -> Iterator[Finding]:
    """Check the objects of a json that are of the classes of a data set."""
    step = dataset.annotation_step
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
    if split.scores_masks or step.get("with_mask"):
        poly2mask = step.get("poly2mask", True)
        unread = [pair for pair in loaded if not _has_mask(*pair, poly2mask)]
        problem = f"{owner} have no mask that mmdet and pycocotools read"
        fix = "give polygons of three points or more, or RLE of the image's size with "
        fix += "poly2mask=True in LoadAnnotations, or fine-tune on boxes only, by boxes"
        yield from listed("FAIL", "D412", _names(unread), problem, fix)
    crowds = [entry for entry, _ in loaded if entry.iscrowd]
    if crowds and not split.is_of_tiles:  # at whose edges parts of objects are crowds
        trained = {entry.category_id for entry, _ in loaded if not entry.iscrowd}
        ids = {entry.category_id for entry in crowds} - trained
        names = [category.name for category in coco.categories if category.id in ids]
        level = "FAIL" if names and split.name == "train" else "note"
        problem = f"{len(crowds)} {owner} have iscrowd=1, as CVAT's brush writes it, and neither "
        problem += f"train nor score, all of {preview(names)}" if names else "train nor score"
        yield Finding(level, "D409", problem, "docs/your-own-data.md#coco writes iscrowd=0")


def _names(objects: Sequence[tuple[Annotation, CocoImage]]) -> list[str]:
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
