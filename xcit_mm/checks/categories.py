"""Checks of what only the COCO json of a config can have wrong: ids, and categories against the
classes of the config.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..datasets import Image, Split
from ..datasets.coco_json import CocoJson
from ..utils.errors import preview
from .findings import Finding, fail, note
from .run_config import ConfiguredData

_NUMBER = "number the annotations 1, 2, 3, ..."


def to_split(coco: CocoJson, dataset: ConfiguredData) -> Split:
    """Return the images and objects of a json as a split with the paths and classes of a data set.
    Objects of other categories have the label -1.
    """
    numbers = {name: number for number, name in enumerate(dataset.classes)}
    class_of_category = np.array(
        [numbers.get(category["name"], -1) for category in coco.categories], int
    )
    objects = coco.objects
    is_known = (objects.images >= 0) & (objects.labels >= 0)
    labels = class_of_category[objects.labels[is_known]]
    images = [
        Image(Path(dataset.photo_path(entry["file_name"])), entry["width"], entry["height"])
        for entry in coco.images
    ]
    return Split(images, coco.path, objects.select(is_known, objects.images[is_known], labels))


def check_ids(coco: CocoJson) -> Iterator[Finding]:
    """Check the ids by which pycocotools finds entries and stores matches."""
    invalid = [annotation_id for annotation_id in coco.ids if not _marks_match(annotation_id)]
    repeated = len(coco.ids) - len(set(coco.ids))
    if invalid:
        example = f"such as {invalid[0]!r}, which pycocotools counts as missed"
        problem = f"{len(invalid)} annotations of {coco.path} have no number above 0 as id"
        yield fail("D418", f"{problem}, {example}", _NUMBER)
    elif repeated:
        problem = f"{repeated} annotations of {coco.path} have the id of another"
        yield fail("D418", f"{problem}: pycocotools confuses them", _NUMBER)


def _marks_match(annotation_id: object) -> bool:
    """Return whether an id is a number other than 0. pycocotools stores the id of the object that
    a prediction matches, and 0 where nothing matches.
    """
    try:
        return float(annotation_id) != 0  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def check_unknown(coco: CocoJson) -> Iterator[Finding]:
    """Check that annotations belong to images and categories of the json."""
    if coco.unknown:
        count = f"{len(coco.unknown)} of {len(coco.ids)} annotations of {coco.path}"
        problem = f"{count} have an unknown image_id or category_id: {preview(coco.unknown)}"
        yield fail("D408", problem, "correct or remove them: mmdet drops them")


def check_categories(coco: CocoJson, classes: Sequence[str], split: str) -> Iterator[Finding]:
    """Compare categories with classes. mmdet numbers the categories that are classes in the order
    of the json.
    """
    names = [category["name"] for category in coco.categories]  # mmdet compares them as written
    learned = [name for name in names if name in classes]
    absent = [name for name in classes if name not in names]
    if len(set(learned)) < len(learned):
        yield from _name_repeated(coco, learned)
        return
    if split == "train":  # the other jsons follow the order that it learns
        fix = f"metainfo=dict(classes={tuple(names if absent else learned)}) in all data sets"
    else:
        fix = f"list the categories of {coco.path} as {tuple(classes)}; ids stay"
    if absent:
        yield _name_absent(coco, classes, absent, fix)
    elif learned != list(classes):
        yield _name_swapped(coco, classes, learned, fix)
    else:
        yield from _name_left_out(coco, _annotated_names(coco, classes))


def _annotated_names(coco: CocoJson, classes: Sequence[str]) -> list[str]:
    """List the categories that have annotations and are not classes."""
    annotated = set(coco.objects.labels.tolist())
    return [
        category["name"]
        for index, category in enumerate(coco.categories)
        if category["name"] not in classes and index in annotated
    ]


def _name_repeated(coco: CocoJson, learned: Sequence[str]) -> Iterator[Finding]:
    """Name each class that several categories have, of which mmdet makes several classes."""
    for name in dict.fromkeys(learned):
        ids = [category["id"] for category in coco.categories if category["name"] == name]
        if len(ids) > 1:
            problem = f"{coco.path} has {len(ids)} categories named {name!r}"
            problem = f"{problem}, of the ids {preview(ids)}: mmdet makes a class of each"
            fix = f"keep one, give its id to the annotations, and name {name!r} once"
            yield fail("D406", problem, f"{fix} in metainfo.classes")


def _name_absent(
    coco: CocoJson, classes: Sequence[str], absent: Sequence[str], fix: str
) -> Finding:
    """Name classes that are not categories."""
    problem = f"{len(absent)} of {len(classes)} classes are not categories of {coco.path}"
    others = _annotated_names(coco, classes)
    instead = f", which has {preview(others)}" if others else ""
    return fail("D405", f"{problem}: {preview(absent)}{instead}", fix)


def _name_swapped(
    coco: CocoJson, classes: Sequence[str], learned: Sequence[str], fix: str
) -> Finding:
    """Name classes that mmdet would show for each other."""
    pairs = zip(learned, classes, strict=False)
    swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
    order = f"mmdet makes a class of each category in the order of {coco.path}"
    return fail("D406", f"{order}, and would show {preview(swapped)}", fix)


def _name_left_out(coco: CocoJson, names: Sequence[str]) -> Iterator[Finding]:
    """Name categories with annotations that are not classes."""
    if names:
        problem = f"the config leaves out categories of {coco.path}: {preview(names)}"
        yield note("D405", problem, "add these categories to classes")
