"""Checks of the classes of a run: their number and order in data and heads."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from torch import nn

from ..datasets.coco_json import CocoJson
from ..utils.errors import preview
from .findings import Finding, fail, listed, note
from .run_config import ConfiguredSplit


def check_classes(
    splits: Iterable[ConfiguredSplit], heads: Mapping[str, nn.Module]
) -> Iterator[Finding]:
    """Check the classes of all data sets against each other and `num_classes` of the heads."""
    origins: dict[tuple[str, ...], str] = {}
    for split in splits:
        if split.library == "mmpretrain":  # which takes classes from its data
            continue
        for dataset in split.datasets:
            classes = dataset.classes
            if classes and not isinstance(classes, str):
                if tuple(classes) not in origins:
                    origins[tuple(classes)] = f"{split.name} data"
                    yield from _check_heads(split, len(classes), heads)
            elif dataset.reader in ("CocoDataset", "BaseSegDataset"):  # others may find names
                problem = f"classes={classes!r} in the {split.name} data set"
                yield fail("D302", problem, "metainfo=dict(classes=('name', ...))")
    if len(origins) > 1:
        yield _compare_classes(origins)


def _check_heads(
    split: ConfiguredSplit, number: int, heads: Mapping[str, nn.Module]
) -> Iterator[Finding]:
    """Compare the number of classes of a split with the heads."""
    for name, head in heads.items():
        if head.num_classes != number:
            problem = f"{name}.num_classes is {head.num_classes}"
            problem = f"{problem}, the {split.name} data set has {number} classes"
            fix = f"--cfg-options model.{name}.num_classes={number}, or correct metainfo.classes"
            yield fail("D303", problem, fix)
    if number == 1 and split.library == "mmseg":
        problem = f"{split.name} data: with one class IoUMetric counts every pixel as that class"
        fix = "metainfo=dict(classes=('background', 'name')), num_classes=2 and "
        yield note("D304", problem, f"{fix}out_channels=1 in the heads")


def _compare_classes(origins: Mapping[tuple[str, ...], str]) -> Finding:
    """Compare the first two lists of classes, which differ, given the origin of each."""
    classes, other_classes = list(origins)[:2]
    pairs = zip(classes, other_classes, strict=False)
    differing = [(name, other) for name, other in pairs if name != other]
    examples = [f"{name} and {other}" for name, other in differing]
    if not examples:
        examples = [f"{len(classes)} and {len(other_classes)} classes"]
    # Renamed classes are a note, exchanged classes a failure.
    are_new_names = all(other not in classes for _, other in differing)
    level = note if len(classes) == len(other_classes) and are_new_names else fail
    where = f"{origins[classes]} and {origins[other_classes]}"
    problem = f"{where} have different classes: {preview(examples)}"
    fix = "give both the same metainfo.classes, in the order that the model has learned"
    return level("D305", problem, fix)


def check_categories(coco: CocoJson, classes: Sequence[str], is_training: bool) -> list[Finding]:
    """Compare the categories of a json with classes. mmdet numbers the categories that are classes
    in the order of the json. The other jsons follow the order of the training.
    """
    names = [category["name"] for category in coco.categories]  # mmdet compares them as written
    learned = [name for name in names if name in classes]
    ids = defaultdict(list)
    for category in coco.categories:
        ids[category["name"]].append(category["id"])
    repeated = [
        f"{len(ids[name])} categories {name!r} with the ids {preview(ids[name])}"
        for name in dict.fromkeys(learned)
        if len(ids[name]) > 1
    ]
    if repeated:
        problem = f"names stand several times in {coco.path}, and mmdet makes a class of each"
        fix = "keep one of each name, give its id to the annotations, and name it once in classes"
        return listed("FAIL", "D406", repeated, problem, fix)
    absent = [name for name in classes if name not in names]
    annotated = set(coco.objects.labels.tolist())
    unlearned = [
        name for label, name in enumerate(names) if label in annotated and name not in classes
    ]
    fix = f"list the categories of {coco.path} as {tuple(classes)}; ids stay"
    if is_training:
        fix = f"metainfo=dict(classes={tuple(names if absent else learned)}) in all data sets"
    if absent:
        problem = f"of {len(classes)} classes are not categories of {coco.path}"
        if unlearned:
            problem = f"{problem}, which has {preview(unlearned)}"
        return listed("FAIL", "D405", absent, problem, fix)
    pairs = zip_longest(learned, classes)
    swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
    if swapped:
        problem = f"classes would be shown as others, in mmdet's order, that of {coco.path}"
        return listed("FAIL", "D406", swapped, problem, fix)
    problem = f"categories of {coco.path} are left out by the config"
    return listed("note", "D405", unlearned, problem, "add these categories to classes")
