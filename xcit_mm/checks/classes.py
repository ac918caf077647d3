"""Checks of the classes of a run: their number and order in data and heads."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from mmengine.config import Config
from torch import nn

from ..datasets.coco import CocoFile
from ..utils.errors import counted, preview
from ..weights.class_names import check_same_classes, configured_classes, learned_classes
from ..weights.lookup import load_checkpoint
from .findings import Finding, fail, listed, note, ok
from .run_config import ConfiguredSplit


def check_classes(
    splits: Iterable[ConfiguredSplit], heads: Mapping[str, nn.Module]
) -> Iterator[Finding]:
    """Check the classes of all data sets against the first's, and these against the heads."""
    splits_of: dict[tuple[str, ...], str] = {}
    for split in splits:
        with contextlib.suppress(Exception):  # which `check_data` reports
            for dataset in split.datasets:
                classes = tuple(dataset.classes)
                if classes:
                    splits_of.setdefault(classes, split.name)
                if len(classes) == 1 and dataset.data_format == "maps":
                    problem = "with one class IoUMetric counts every pixel as that class"
                    fix = "name two classes, with num_classes=2 and out_channels=1 in the heads"
                    yield note("D304", f"{split.name}: {problem}", fix)
    first = next(iter(splits_of), ())
    for name, head in heads.items():
        if first and head.num_classes != len(first):
            problem = f"{name}.num_classes is {head.num_classes}, the {splits_of[first]} data set"
            problem = f"{problem} has {counted(len(first), 'class')}, {preview(first)}"
            yield fail("D303", problem, f"correct metainfo.classes, or model.{name}.num_classes")
    for others in list(splits_of)[1:]:
        pairs = enumerate(zip_longest(first, others))
        number, (name, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        problem = f"class {number} is {name} in the {splits_of[first]} data, {other} in the"
        fix = "give both the metainfo.classes that the model has learned"
        yield fail("D305", f"{problem} {splits_of[others]} data", fix)


def check_categories(
    path: str, coco: CocoFile, classes: Sequence[str], is_training: bool
) -> list[Finding]:
    """Compare the categories of a json with classes. mmdet numbers the categories that are classes
    in the order of the json. The other jsons follow the order of the training.
    """
    names = [category.name for category in coco.categories]
    learned = [name for name in names if name in classes]
    absent = [name for name in classes if name not in names]
    fix = f"list the categories of {path} as {tuple(classes)}; ids stay"
    if is_training:
        fix = f"metainfo=dict(classes={tuple(names if absent else learned)}) in all data sets"
    if absent:
        problem = f"of {len(classes)} classes are not categories of {path}"
        return listed("FAIL", "D405", absent, problem, fix)
    pairs = zip(learned, classes, strict=False)
    swapped = [f"{name} as {shown}" for name, shown in pairs if name != shown]
    if swapped:
        problem = f"classes would be shown as others, in mmdet's order, that of {path}"
        return listed("FAIL", "D406", swapped, problem, fix)
    annotated = {annotation.category_id for annotation in coco.annotations}
    unlearned = [entry.name for entry in coco.categories if entry.id in annotated]
    unlearned = [name for name in unlearned if name not in classes]
    problem = f"categories of {path} are left out by the config"
    return listed("note", "D405", unlearned, problem, "add these categories to classes")


def check_learned_classes(cfg: Config, checkpoint: str | None) -> Iterator[Finding]:
    """Check that a checkpoint, which may be downloaded, has learned the classes of a test."""
    if checkpoint is not None:
        learned = learned_classes(load_checkpoint(checkpoint))
        check_same_classes(checkpoint, learned, configured_classes(cfg))
        yield ok(f"{checkpoint} fits the classes")
