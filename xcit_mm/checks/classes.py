"""Checks of the classes of a run: their number and order in data and heads."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest

from ..utils.errors import counted, preview
from .findings import Findings, fail
from .run_config import ConfiguredSplit


def check_classes(splits: Sequence[ConfiguredSplit]) -> Findings:
    """Check the classes of the heads and of all data sets against those of the first data set."""
    split_of: dict[tuple[str, ...], str] = {}
    for split in splits:
        with suppress(Exception):  # `check_data` reports it
            for dataset in split.datasets:
                split_of.setdefault(dataset.classes, split.name)
    split_of.pop((), None)
    if not split_of:
        return
    (classes, split_name), *others = split_of.items()
    for name, head in splits[0].heads.items():
        if head.num_classes != len(classes):
            named = f"{counted(len(classes), 'class')}, {preview(classes)}"
            problem = f"{name}.num_classes is {head.num_classes}, the {split_name} data set has"
            fix = f"correct metainfo.classes, or model.{name}.num_classes"
            yield fail("D303", f"{problem} {named}", fix)
    for other_classes, other_name in others:
        for number, (name, other) in enumerate(zip_longest(classes, other_classes)):
            if name != other:
                place = f"class {number} is {name} in the {split_name} data"
                fix = "give both the metainfo.classes that the model has learned"
                yield fail("D305", f"{place}, {other} in the {other_name} data", fix)
                break
