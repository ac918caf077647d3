"""Classes are known by their names: which names a checkpoint has, whether they are those of a
config, and which rows of the heads belong to each.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..utils.configs import data_sets, metainfo
from ..utils.errors import preview
from ..utils.texts import compose, find_alike
from .reader import meta_of

# Layers of mmdet, mmseg and mmpretrain that give each class a score or a mask.
_SCORE_LAYER = re.compile(
    r"(\w*_cls|cls_branches|cls_embed|conv_logits|conv_seg|fc|fc_mask_iou|head|se_layer)"
    r"(\.\d+)?\.\w+"
)
_BOX_LAYER = re.compile(r"fc_reg\.\w+")  # of a Faster R-CNN


class ClassNames(NamedTuple):
    """Names of the classes by their number, in a file and in the model that the file fills."""

    in_file: tuple[str, ...]
    in_model: tuple[str, ...]

    def describe(self) -> str:
        """Return a line: classes whose rows the heads keep, new classes, and almost equal names."""
        kept = [name for name in self.in_model if name in self.in_file]
        new = [name for name in self.in_model if name not in self.in_file]
        line = f"heads keep {len(kept)} of {len(self.in_model)} classes by name"
        if kept:
            line += f" ({preview(kept)})"
        if new:
            line += f"; new: {preview(new)}"
        alike = [
            " and ".join(group)
            for group in find_alike([*self.in_file, *new])
            if group[0] in self.in_file and group[-1] in new
        ]
        return f"{line}; almost the same: {preview(alike)}" if alike else line


def plain_names(names: Any) -> tuple[str, ...] | None:
    """Return names in the form in which they are compared, or None if `names` is not a list."""
    if not isinstance(names, list | tuple):
        return None
    return tuple(compose(str(name)).strip() for name in names)


def learned_classes(checkpoint: Any) -> tuple[str, ...] | None:
    """Return the names of the classes that the content of a file was trained on, or None if the
    file, such as one that holds weights alone, does not name them.
    """
    meta = meta_of(checkpoint)
    dataset_meta = meta.get("dataset_meta") or {}
    # Capital letters are of mmcv 1 and of the first checkpoints of mmdet 3, such as RTMDet's.
    names = dataset_meta.get("classes") or dataset_meta.get("CLASSES") or meta.get("CLASSES")
    return plain_names(names)


def configured_classes(cfg: Config, split: str = "test") -> tuple[str, ...] | None:
    """Return the names of the classes of a split in a config of mmdet or mmseg, or None."""
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):  # mmpretrain takes them from folders
        return None
    for dataset in data_sets(cfg, split):
        # The library registers its data sets in its own scope.
        names = plain_names(metainfo(dict(_scope_=cfg.default_scope) | dataset).get("classes"))
        if names:
            return names
    return None


def check_same_classes(
    checkpoint: Any, learned: Sequence[str] | None, classes: Sequence[str] | None
) -> None:
    """Raise ValueError if a checkpoint has learned other classes than those of a config, or the
    same in another order; print a line if only upper and lower case differ. None, for classes that
    are not known, is accepted.
    """
    if learned is None or classes is None or tuple(learned) == tuple(classes):
        return
    pairs = zip(learned, classes, strict=False)
    name, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    if sorted(learned) == sorted(classes):
        number = list(learned).index(name)
        problem = f"the config's classes in another order: {number} is {name}, not {other}"
    elif [name.casefold() for name in learned] == [name.casefold() for name in classes]:
        print(f"{checkpoint} names a class {name}, the config {other}", file=sys.stderr)
        return
    else:
        lacking = preview([name for name in learned if name not in classes])
        unknown = preview([name for name in classes if name not in learned])
        problem = "other classes than the config: "
        problem += f"{lacking or 'no others'} instead of {unknown or 'no others'}"
    fix = "take the config that it was trained with, or a checkpoint of this config"
    raise ValueError(f"{checkpoint} has learned {problem}; {fix}")


def class_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the heads that predict the classes of the data set, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.rstrip(".0123456789").endswith("head")
        and isinstance(getattr(module, "num_classes", None), int)
        and not _predicts_other_classes(model, name, module)
    }


def _predicts_other_classes(model: nn.Module, name: str, head: nn.Module) -> bool:
    """Return whether a head predicts only objects, boundaries or some of the data set's classes."""
    return (
        (hasattr(model, "panoptic_fusion_head") and name.startswith("roi_head."))
        or name.endswith(("rpn_head", "semantic_head"))
        or type(head).__name__.endswith(("RPNHead", "STDCHead"))
        or bool(getattr(head, "class_agnostic", False))
    )


def move_classes(
    model: Any, expected: Mapping[str, Tensor], state: Mapping[str, Tensor], names: ClassNames
) -> dict[str, Tensor]:
    """Return the tensors of a file with the rows of its heads in the order of a model's classes.
    New classes keep the rows of the model's tensors, `expected`.

    Raises:
        ValueError: If rows cannot be moved, as the layer or its number of rows is unknown.
    """
    heads = class_heads(model)
    if isinstance(getattr(model.backbone, "head", None), nn.Linear):
        heads["backbone"] = model.backbone  # a classifier
    moved = dict(state)
    for prefix, head in heads.items():
        layers = {
            key: key.removeprefix(f"{prefix}.")
            for key in expected
            if key.startswith(f"{prefix}.") and key in state
        }
        # Groups of rows, and rows of a class in a group. None for a layer without rows of classes.
        divisions = {key: _divide_rows(head, layers[key], expected[key]) for key in layers}
        if layers and not any(divisions.values()) and names.in_file != names.in_model:
            problem = f"the rows of {prefix}, a {type(head).__name__}, cannot be moved"
            raise ValueError(f"{problem}: train the classes {preview(names.in_file)} in this order")
        for key, division in divisions.items():
            if division:
                moved[key] = _move_rows(key, expected[key].cpu(), state[key], names, division)
    return moved


def _divide_rows(head: Any, layer: str, tensor: Tensor) -> tuple[int, int] | None:
    """Return the number of groups of rows, one for each anchor, and the rows of a class in a group,
    or None if the rows of the layer are not those of classes.
    """
    if _SCORE_LAYER.fullmatch(layer):
        return len(tensor) // getattr(head, "cls_out_channels", len(tensor)), 1
    if _BOX_LAYER.fullmatch(layer) and not getattr(head, "reg_class_agnostic", True):
        return 1, len(tensor) // head.num_classes
    return None


def _move_rows(
    key: str, initial: Tensor, saved: Tensor, names: ClassNames, division: tuple[int, int]
) -> Tensor:
    """Return the `initial` rows of a layer, with the `saved` rows of classes that the file has too.
    Saved rows of another shape are returned as they are: a later check refuses them.

    `division` holds the number of groups of rows, and of rows of a class in a group. Rows of a
    group that belong to no class, such as the background, are the last. They are taken from the
    file if a class is.
    """
    in_file, in_model = names
    if len(saved) == 1:
        saved, in_file = _as_two_rows(saved, in_file)
    if len(initial) == 1:
        two_rows, in_model = _as_two_rows(initial, in_model)
        moved = _move_rows(key, two_rows, saved, ClassNames(in_file, in_model), division)
        return moved[1:] - moved[:1]  # a sigmoid of it is the softmax of the two
    groups, size = division
    without_class = len(initial) // groups // size - len(in_model)
    if len(saved) != groups * (len(in_file) + without_class) * size:
        if saved.shape != initial.shape:
            return saved
        raise ValueError(f"its {key} has {len(saved)} rows for {len(in_file)} classes")
    if saved.shape[1:] != initial.shape[1:]:
        return saved
    rows = [(row, in_file.index(name)) for row, name in enumerate(in_model) if name in in_file]
    if rows:
        rows += [(len(in_model) + row, len(in_file) + row) for row in range(without_class)]
    moved = initial.clone()
    new = moved.unflatten(0, (groups, -1, size))
    old = saved.unflatten(0, (groups, -1, size))
    for row, row_in_file in rows:
        new[:, row] = old[:, row_in_file]
    return moved


def _as_two_rows(row: Tensor, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the only row of a segmentor, whose sigmoid separates a class from the background, as
    two rows for a softmax: background and class. Return the names of both too.
    """
    # The names may be those of the class alone, or of both.
    return torch.cat((torch.zeros_like(row), row)), ("background", *classes)[-2:]
