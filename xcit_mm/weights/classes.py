"""Classes are known by their names: which names a checkpoint has, whether they are those of a
config, and which rows of the heads belong to each.
"""

import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..utils.configs import data_sets, metainfo
from ..utils.errors import preview

# Layers of mmdet and mmseg that give each class a score or a mask.
_SCORES = re.compile(
    r"(\w*_cls|cls_branches|cls_embed|conv_logits|conv_seg|fc_mask_iou|se_layer)(\.\d+)?\.\w+"
)
_BOXES = re.compile(r"fc_reg\.\w+")  # of a Faster R-CNN
_SIGMOID = "conv_seg."  # one row separates two classes


class ClassNames(NamedTuple):
    """Names of the classes by their number, in a file and in the model that the file fills."""

    in_file: tuple[str, ...]
    in_model: tuple[str, ...]

    @property
    def kept(self) -> list[str]:
        return [name for name in self.in_model if name in self.in_file]

    @property
    def new(self) -> list[str]:
        return [name for name in self.in_model if name not in self.in_file]

    def describe(self) -> str:
        """Return what the heads keep, in one line."""
        count = len(self.in_model)
        line = f"heads keep {len(self.kept)} of {count} classes by name"
        if self.kept:
            line += f" ({preview(self.kept)})"
        if self.new:
            line += f"; {len(self.new)} {'is' if len(self.new) == 1 else 'are'} new"
            line += f" ({preview(self.new)})"
        folded = {name.casefold(): name for name in self.in_file}
        similar = [
            f"{folded[name.casefold()]} and {name}"
            for name in self.new
            if name.casefold() in folded
        ]
        return f"{line}; only the case differs: {preview(similar)}" if similar else line


def plain_names(names: Any) -> tuple[str, ...] | None:
    """Return names as they are compared, without spaces around them and in Unicode's NFC, or None
    if these are not names.
    """
    if not isinstance(names, list | tuple):
        return None
    return tuple(unicodedata.normalize("NFC", str(name).strip()) for name in names)


def learned_classes(checkpoint: Any) -> tuple[str, ...] | None:
    """Return the names of the classes that the content of a file was trained on, or None if the
    file, such as one that holds weights alone, does not name them.
    """
    meta = checkpoint.get("meta") if isinstance(checkpoint, Mapping) else None
    if not isinstance(meta, Mapping):
        return None
    names = meta.get("CLASSES")  # of mmcv 1
    return plain_names((meta.get("dataset_meta") or {}).get("classes") or names)


def configured_classes(cfg: Config, split: str = "test") -> tuple[str, ...] | None:
    """Return the names of the classes of a split in a config of mmdet or mmseg, or None if the
    config does not name them.
    """
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):  # mmpretrain takes them from folders
        return None
    for dataset in data_sets(cfg, split):
        names = plain_names(metainfo(dict(_scope_=cfg.default_scope) | dataset).get("classes"))
        if names:
            return names
    return None


def check_same_classes(
    checkpoint: Any, learned: Sequence[str] | None, classes: Sequence[str] | None
) -> None:
    """Compare the classes of a checkpoint with those of a config. Print a line if only upper and
    lower case differ. Classes that are not known, None, are accepted.

    Raises:
        ValueError: If they are others, or the same in another order.
    """
    if learned is None or classes is None or tuple(learned) == tuple(classes):
        return
    pairs = zip(learned, classes, strict=False)
    name, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    if [name.casefold() for name in learned] == [name.casefold() for name in classes]:
        print(f"{checkpoint} names a class {name}, the config {other}", file=sys.stderr)
        return
    if sorted(learned) == sorted(classes):
        number = list(learned).index(name)
        problem = f"the config's classes in another order: {number} is {name}, not {other}"
    else:
        lacking = [name for name in learned if name not in classes]
        unknown = [name for name in classes if name not in learned]
        problem = f"other classes than the config: {_list(lacking)} instead of {_list(unknown)}"
    fix = "take the config that it was trained with, or a checkpoint of this config"
    raise ValueError(f"{checkpoint} has learned {problem}; {fix}")


def _list(names: Sequence[str]) -> str:
    return preview(names) or "no others"


def class_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the heads that predict the classes of the data set, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.rstrip(".0123456789").endswith("head")
        and isinstance(getattr(module, "num_classes", None), int)
        and not _has_other_classes(model, name, module)
    }


def _has_other_classes(model: nn.Module, name: str, head: nn.Module) -> bool:
    """Return whether a head predicts objects or boundaries only, or some of the classes."""
    is_of_things = hasattr(model, "panoptic_fusion_head") and name.startswith("roi_head.")
    return (
        is_of_things
        or name.endswith(("rpn_head", "semantic_head"))
        or type(head).__name__.endswith(("RPNHead", "STDCHead"))
        or bool(getattr(head, "class_agnostic", False))
    )


def move_classes(
    model: nn.Module, expected: Mapping[str, Tensor], state: dict[str, Tensor], names: ClassNames
) -> dict[str, Tensor]:
    """Move the rows of heads to the numbers that their classes have in a model.

    Args:
        expected: Tensors of the model, whose rows new classes keep.
        state: Tensors of a file.

    Raises:
        ValueError: If rows cannot be moved, as the layer or its number of rows is unknown.
    """
    moved = dict(state)
    for prefix, head in class_heads(model).items():
        layers = {
            key: key.removeprefix(f"{prefix}.")
            for key in expected
            if key.startswith(f"{prefix}.") and key in state
        }
        of_classes = [key for key, layer in layers.items() if _divide_rows(head, layer, 1)]
        if layers and not of_classes and names.in_file != names.in_model:
            problem = f"the rows of {prefix}, a {type(head).__name__}, cannot be moved"
            raise ValueError(f"{problem}: train the classes {preview(names.in_file)} in this order")
        for key in of_classes:
            rows = _Rows(key, expected[key], state[key])
            if layers[key].startswith(_SIGMOID) and 1 in (len(rows.initial), len(rows.saved)):
                moved[key] = _move_sigmoid(rows, names)
            else:
                division = _divide_rows(head, layers[key], len(expected[key]))
                moved[key] = _move_rows(rows, names, *division)
    return moved


class _Rows(NamedTuple):
    """A tensor of a head by its name: of the new model, and of the file."""

    key: str
    initial: Tensor
    saved: Tensor


def _divide_rows(head: Any, layer: str, rows: int) -> tuple[int, int] | tuple[()]:
    """Return the number of groups of rows, one for each anchor, and how many rows of a group
    belong to a class. It is () if the rows of the layer are not those of classes.
    """
    if _SCORES.fullmatch(layer):
        return rows // getattr(head, "cls_out_channels", rows), 1
    if _BOXES.fullmatch(layer) and not getattr(head, "reg_class_agnostic", True):
        return 1, rows // head.num_classes
    return ()


def _move_rows(rows: _Rows, names: ClassNames, groups: int = 1, size: int = 1) -> Tensor:
    """Return the rows of a model with those of the file for the classes of the same names.

    Rows of a group that belong to no class, such as the background, are the last. They are taken
    from the file if a class is.
    """
    key, initial, saved = rows
    others = len(initial) // groups // size - len(names.in_model)
    if len(saved) != groups * (len(names.in_file) + others) * size:
        if saved.shape != initial.shape:
            return saved
        raise ValueError(f"its {key} has {len(saved)} rows for {len(names.in_file)} classes")
    if saved.shape[1:] != initial.shape[1:]:
        return saved
    moved = initial.cpu().clone()
    if not names.kept:
        return moved
    new = moved.unflatten(0, (groups, -1, size))
    old = saved.unflatten(0, (groups, -1, size))
    for number, name in enumerate(names.in_model):
        if name in names.in_file:
            new[:, number] = old[:, names.in_file.index(name)]
    new[:, len(names.in_model) :] = old[:, len(names.in_file) :]
    return moved


def _move_sigmoid(rows: _Rows, names: ClassNames) -> Tensor:
    """Move the one row of a segmentor that separates a class from the background, also into two
    rows of a softmax.
    """
    key, initial, saved = rows
    in_file = ("background", *names.in_file)[-2:] if len(saved) == 1 else names.in_file
    if len(initial) == len(saved):
        return saved if in_file == ("background", *names.in_model)[-2:] else initial.cpu().clone()
    if len(initial) == 1 or len(names.in_file) > 2:
        return saved
    two_rows = torch.cat((torch.zeros_like(saved), saved))
    return _move_rows(_Rows(key, initial, two_rows), names._replace(in_file=in_file))
