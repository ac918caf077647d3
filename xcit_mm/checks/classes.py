"""Checks of the classes of a run: their number and order in data and heads."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest

from mmengine.config import Config
from torch import nn

from ..datasets.coco import CocoFile
from ..utils.errors import counted, preview
from ..weights.class_names import check_same_classes, configured_classes, learned_classes
from ..weights.lookup import load_checkpoint
from .findings import Findings, fail, listed, note, ok
from .run_config import ConfiguredData, ConfiguredSplit

Classes = tuple[str, ...]


def check_classes(splits: Iterable[ConfiguredSplit], heads: Mapping[str, nn.Module]) -> Findings:
    """Check the classes of the heads and of all data sets against those of the first data set."""
    split_of: dict[Classes, str] = {}
    for split in splits:
        with suppress(Exception):  # `check_data` reports it
            for dataset in split.datasets:
                if dataset.classes:
                    split_of.setdefault(tuple(dataset.classes), split.name)
                if len(dataset.classes) == 1 and dataset.data_format == "maps":
                    problem = "with one class IoUMetric counts every pixel as that class"
                    fix = "name two classes, with num_classes=2 and out_channels=1 in the heads"
                    yield note("D304", f"{split.name}: {problem}", fix)
    if split_of:
        first, *others = split_of
        yield from _check_heads(heads, first, split_of[first])
        for classes in others:
            yield from _check_order(first, split_of[first], classes, split_of[classes])


def _check_heads(heads: Mapping[str, nn.Module], classes: Classes, split: str) -> Findings:
    for name, head in heads.items():
        if head.num_classes != len(classes):
            named = f"{counted(len(classes), 'class')}, {preview(classes)}"
            problem = f"{name}.num_classes is {head.num_classes}, the {split} data set has {named}"
            yield fail("D303", problem, f"correct metainfo.classes, or model.{name}.num_classes")


def _check_order(first: Classes, split: str, others: Classes, other_split: str) -> Findings:
    """Report the first class that differs between two data sets."""
    for number, (name, other) in enumerate(zip_longest(first, others)):
        if name != other:
            problem = f"class {number} is {name} in the {split} data, {other} in the {other_split}"
            fix = "give both the metainfo.classes that the model has learned"
            return [fail("D305", f"{problem} data", fix)]
    return []


def check_categories(path: str, coco: CocoFile, dataset: ConfiguredData) -> Findings:
    """Check the categories of a COCO file.

    mmdet numbers the classes in the order of the file, so all files must have the order of the
    training file.
    """
    classes = dataset.classes
    names = [category.name for category in coco.categories]
    learned = [name for name in names if name in classes]
    absent = [name for name in classes if name not in names]
    fix = f"list the categories of {path} as {tuple(classes)}; ids stay"
    if dataset.split.name == "train":
        fix = f"metainfo=dict(classes={tuple(names if absent else learned)}) in all data sets"
    if absent:
        problem = f"of {len(classes)} classes are not categories of {path}"
        return listed("FAIL", "D405", absent, problem, fix)
    pairs = zip(learned, classes, strict=False)
    swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
    if swapped:
        problem = f"classes would be shown as others, since mmdet takes the order of {path}"
        return listed("FAIL", "D406", swapped, problem, fix)
    annotated = {annotation.category_id for annotation in coco.annotations}
    unlearned = [
        category.name
        for category in coco.categories
        if category.id in annotated and category.name not in classes
    ]
    problem = f"categories of {path} are left out by the config"
    return listed("note", "D405", unlearned, problem, "add these categories to classes")


def check_learned_classes(cfg: Config, checkpoint: str | None) -> Findings:
    """Check that a checkpoint, which may be downloaded, has learned the classes of a test."""
    if checkpoint is not None:
        learned = learned_classes(load_checkpoint(checkpoint))
        check_same_classes(checkpoint, learned, configured_classes(cfg))
        yield ok(f"{checkpoint} fits the classes")
