"""Checks of the classes of a run: their names, and their number and order in data and heads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import nn

from ..utils.errors import preview
from ..utils.texts import find_alike
from .findings import Finding, fail, note
from .run_config import ConfiguredSplit


def check_names(classes: Sequence[str], owner: str) -> Iterator[Finding]:
    """Check that each class has a name of its own."""
    nameless = [number for number, name in enumerate(classes) if not str(name).strip()]
    if nameless:
        problem = f"class {preview(nameless)} of the {owner} has no name"
        yield fail("D307", problem, "name it in classes")
    alike = [" and ".join(map(repr, names)) for names in find_alike(map(str, classes))]
    if alike:
        problem = f"classes of the {owner} differ only in case or spaces: {preview(alike)}"
        yield note("D307", problem, "give them one name if they are one class")


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
                    yield from check_names(classes, f"{split.name} data")
                    yield from _check_heads(split, classes, heads)
            elif dataset.reader in ("CocoDataset", "BaseSegDataset"):  # others may read the names
                problem = f"classes={classes!r} in the {split.name} data set"
                yield fail("D302", problem, "metainfo=dict(classes=('name', ...))")
    yield from _compare_classes(origins)


def _check_heads(
    split: ConfiguredSplit, classes: Sequence[str], heads: Mapping[str, nn.Module]
) -> Iterator[Finding]:
    number = len(classes)
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


def _compare_classes(origins: Mapping[tuple[str, ...], str]) -> Iterator[Finding]:
    """Compare the first two lists of classes that differ, given the origin of each."""
    if len(origins) < 2:
        return
    classes, other_classes = list(origins)[:2]
    pairs = list(zip(classes, other_classes, strict=False))
    differing = [(name, other) for name, other in pairs if name != other]
    examples = [f"{name} and {other}" for name, other in differing]
    if not examples:
        examples = [f"{len(classes)} and {len(other_classes)} classes"]
    are_new_names = all(other not in classes for _, other in differing)
    level = note if len(classes) == len(other_classes) and are_new_names else fail
    where = f"{origins[classes]} and {origins[other_classes]}"
    problem = f"{where} have different classes: {preview(examples)}"
    fix = "give both the same metainfo.classes, in the order that the model has learned"
    yield level("D305", problem, fix)
