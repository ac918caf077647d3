"""Matching of a checkpoint to a model: it fills the whole model, or an error says why not."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..utils.cli import log_line
from ..utils.compat import is_resuming, is_training_run
from ..utils.configs import read_config
from ..utils.errors import preview
from .bands import check_stem_rule, with_stem_for_bands
from .classes import (
    ClassNames,
    check_same_classes,
    configured_classes,
    learned_classes,
    move_classes,
    plain_names,
)
from .layouts import CLASSIFIER_PREFIXES, Weights, describe, parse_checkpoint
from .zoo import find_config, load_checkpoint

PYRAMID_PREFIXES = ("fpn1.", "fpn2.", "fpn3.", "fpn4.")
_MASK_HEAD = "roi_head.mask_head."  # of mmdet
_KEEP_HINT = "to fine-tune: strict_heads=False in StrictLoadHook, or in init_cfg of a classifier"


class CheckpointMismatch(ValueError):
    """A checkpoint does not fit the model."""


def load_pretrained(
    backbone: Any,
    checkpoint: str,
    use_ema: bool = False,
    strict_heads: bool = True,
    fill_stem: str | None = None,
) -> list[str]:
    """Fill a backbone or a classifier from a checkpoint in any layout: all of it, or nothing.

    See `match_trunk` for the parts that the checkpoint may lack and those that may remain unused.

    Args:
        backbone: A backbone of this package.
        checkpoint: A path, a URL or `xcit://NAME`.
        use_ema: See `parse_checkpoint`.
        strict_heads: False lets the head of a classifier keep its initial values if the file has no
            head or a head for other classes.
        fill_stem: Rule of `bands.stem_for_bands` for a backbone of other bands than the file's RGB.

    Returns:
        Names of the tensors of the pyramid or the head that keep their initial values.

    Raises:
        FileNotFoundError: If the file does not exist.
        ConnectionError: If it cannot be downloaded.
        ValueError: If it does not fit the backbone, which is left as it was.
    """
    loaded = load_checkpoint(checkpoint)
    try:
        weights = parse_checkpoint(loaded, use_ema)
        state = backbone.match_weights(weights, strict_heads, fill_stem)
    except ValueError as error:
        raise ValueError(f"{checkpoint} does not fit the model: {error}") from None
    initial = backbone.load_state_dict(state, strict=False).missing_keys
    description = backbone.describe_weights(weights)
    message = f"loaded {len(state)} tensors of {description} from {checkpoint}"
    if initial:
        part = "head" if "head.weight" in initial else "pyramid"
        message += f"; {len(initial)} of the {part} keep their initial values"
    log_line(message)
    return initial


def match_model(
    model: nn.Module,
    checkpoint: dict,
    strict_heads: bool = True,
    fill_stem: str | None = None,
    names: ClassNames | None = None,
) -> dict[str, Tensor]:
    """Return the state dict with which a checkpoint fills a detector, segmentor or classifier.

    `strict_heads` and `fill_stem` are those of `StrictLoadHook`. The model is not changed.

    Args:
        names: Classes of the checkpoint and of the model, to whose numbers rows of the heads are
            moved. Without `strict_heads`, they may be others.

    Raises:
        ValueError: If the model has another backbone; CheckpointMismatch if the file does not fit.
    """
    backbone: Any = getattr(model, "backbone", None)
    if not hasattr(backbone, "pretrained_options"):
        name = type(backbone).__name__
        fix = "leave StrictLoadHook out, or give backbone=dict(type='XCiT', ...)"
        raise ValueError(f"the model's backbone, {name}, is not one of this package: {fix}")
    initial = model.state_dict()
    expected_heads = without(initial, "backbone.")
    try:
        weights = parse_checkpoint(checkpoint)
        # The head of a segmentor or classifier may be named `head.`, which counts as trunk.
        heads = weights.heads or {
            key: tensor for key, tensor in weights.trunk.items() if key in expected_heads
        }
        if expected_heads and not heads:
            raise ValueError(f"it is a {weights.task}: give it to the backbone's init_cfg instead")
        if names is not None:
            moved = move_classes(model, initial, _named(weights.trunk) | heads, names)
            heads = without(moved, "backbone.")
            weights.trunk = {key: moved[f"backbone.{key}"] for key in weights.trunk}
        trunk = backbone.match_weights(weights, strict_heads, fill_stem)
        if names and strict_heads and sorted(names.in_file) != sorted(names.in_model):
            raise ValueError(f"{names.describe()}; {_KEEP_HINT}")
        heads = _match_heads(expected_heads, heads, strict_heads)
    except ValueError as error:
        raise CheckpointMismatch(f"the checkpoint does not fit the model: {error}") from None
    # mmengine requires all tensors, so omitted heads keep their initial values.
    return initial | _named(trunk) | heads


def _named(trunk: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"backbone.{key}": tensor for key, tensor in trunk.items()}


def match_trunk(
    backbone: Any, weights: Weights, strict_heads: bool = True, fill_stem: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint that fill a backbone or a classifier.

    The file of a detector or segmentor must fill the pyramid too. Another file may lack it. A
    backbone does not use class attention and the head of a classifier, the blocks after its last
    tap, and levels of the pyramid that it lacks. A classifier without classes does not use a head.
    `strict_heads` and `fill_stem` are those of `load_pretrained`.

    Raises:
        ValueError: If they do not fit. The message names an option that helps a training to start.
    """
    expected = backbone.state_dict()
    in_file = describe(weights.trunk)
    in_config = describe(expected, backbone.arch.depth)
    # A backbone ends with its last tap, so it may save fewer blocks than its architecture has.
    if in_file not in (in_config, describe(expected)):
        raise ValueError(f"the file is {in_file}, the config asks for {in_config}")
    trunk = with_stem_for_bands(weights.trunk, backbone.in_channels, fill_stem)
    if hasattr(backbone, "cls_token"):
        return _match_classifier(expected, trunk, weights.task, strict_heads)
    after_taps = range(len(backbone.blocks), backbone.arch.depth)
    unused = [f"blocks.{index}." for index in after_taps]
    unused += [prefix for prefix in PYRAMID_PREFIXES if not hasattr(backbone, prefix[:-1])]
    if not weights.heads:
        unused += CLASSIFIER_PREFIXES
        if not any(key.startswith(PYRAMID_PREFIXES) for key in trunk):
            expected = without(expected, PYRAMID_PREFIXES)
    return check_coverage(expected, without(trunk, tuple(unused)))


def _match_classifier(
    expected: dict[str, Tensor], trunk: dict[str, Tensor], task: str, strict: bool
) -> dict[str, Tensor]:
    if "cls_token" not in trunk:
        fix = "take a file trained on ImageNet or by DINO"
        raise ValueError(f"it is a {task} without class attention: {fix}")
    classes = _count_classes(expected)
    classes_in_file = _count_classes(trunk)
    if classes and classes == classes_in_file:
        return check_coverage(expected, trunk)
    if classes and strict:
        problem = f"the file has {classes_in_file or 'no'} classes"
        raise ValueError(f"{problem}, the model has num_classes={classes}; {_KEEP_HINT}")
    return check_coverage(without(expected, "head."), without(trunk, "head."))


def _count_classes(trunk: Mapping[str, Tensor]) -> int:
    return trunk["head.weight"].shape[:1].numel() if "head.weight" in trunk else 0


def _match_heads(
    expected: dict[str, Tensor], heads: dict[str, Tensor], strict: bool
) -> dict[str, Tensor]:
    """Return the tensors that fill the heads: all of them, or, if not strict, those that fit."""
    if not strict:
        if not any(key.startswith(_MASK_HEAD) for key in expected):  # a Faster from a Mask R-CNN
            heads = without(heads, _MASK_HEAD)
        resized = tuple(
            key for key in expected if key in heads and heads[key].shape != expected[key].shape
        )
        if resized:
            log_line(f"of other shapes, so they keep their initial values: {', '.join(resized)}")
        return check_coverage(without(expected, resized), without(heads, resized))
    try:
        return check_coverage(expected, heads)
    except ValueError as error:
        hint = f"other classes? take the config that it was trained with; {_KEEP_HINT}"
        raise ValueError(f"{error} ({hint})") from None


def without(state: Mapping[str, Tensor], prefixes: str | tuple[str, ...]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


def check_coverage(expected: Mapping[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that have the expected names, shapes and types and are finite, or raise."""
    missing = [key for key in expected if key not in state]
    if missing:
        raise ValueError(f"it lacks {preview(missing)}")
    unknown = [key for key in state if key not in expected]
    if unknown:
        raise ValueError(f"it holds the unknown {preview(unknown)}")
    misfits = []
    for key, target in expected.items():
        tensor = state[key]
        is_float = tensor.is_floating_point()
        if tensor.shape != target.shape:
            misfits.append(f"{key} of {tuple(tensor.shape)}, not {tuple(target.shape)}")
        elif is_float != target.is_floating_point():
            misfits.append(f"{key} of {tensor.dtype}, not {target.dtype}")
        elif is_float and not tensor.float().isfinite().all():  # float8 has no isfinite
            misfits.append(f"{key} with values that are not finite")
    if misfits:
        raise ValueError(f"it holds {preview(misfits)}")
    return state


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Loads a whole detector, segmentor or classifier in mmengine, or raises and loads nothing.

    It acts on `load_from`, testing and resuming. The file must hold every parameter and buffer of
    the model with its shape, and nothing else. The file of a backbone alone is for `init_cfg`.

    A class is its name: at the start of a training, rows of the heads are moved to the numbers that
    their classes have in the training data, and a resumed run must have the file's classes.

    Args:
        strict_heads: False lets rows of new classes, and heads of other shapes, keep their initial
            values when training starts from `load_from`, and lists them.
        fill_stem: Rule of `xcit_mm.weights.bands.stem_for_bands`, 'rgb-mean', 'rgb-zero' or 'mean',
            that makes a stem for the model's `in_channels` when training starts from the file of a
            model for RGB.

    Raises:
        ValueError: If the rule is unknown.
    """

    # Before a hook copies the checkpoint's tensors, as EMAHook does by their names.
    priority = "VERY_HIGH"

    def __init__(self, strict_heads: bool = True, fill_stem: str | None = None) -> None:
        check_stem_rule(fill_stem)
        self.strict_heads = strict_heads
        self.fill_stem = fill_stem

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors the names of the model, or
        raise CheckpointMismatch.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        options: dict[str, Any] = {}
        if is_training_run(runner):
            dataset = runner.train_dataloader.dataset
            classes = plain_names(getattr(dataset, "metainfo", {}).get("classes"))
            if is_resuming(runner):
                try:
                    check_same_classes("the checkpoint", learned_classes(checkpoint), classes)
                except ValueError as error:
                    raise CheckpointMismatch(str(error)) from None
            else:
                options = dict(strict_heads=self.strict_heads, fill_stem=self.fill_stem)
                options["names"] = _pair_names(runner, checkpoint, classes) if classes else None
        checkpoint["state_dict"] = match_model(model, checkpoint, **options)


def _pair_names(runner: Runner, checkpoint: dict, classes: tuple[str, ...]) -> ClassNames | None:
    """Return the classes of a checkpoint and of the training that starts from it, or None if the
    checkpoint does not name its own.
    """
    in_file = learned_classes(checkpoint)
    name = runner.cfg.get("load_from")
    if in_file is None and name:
        with suppress(ValueError, OSError):  # a file without a config beside it
            in_file = configured_classes(read_config(find_config(name)))
    if in_file is None:
        log_line("the checkpoint does not name its classes: heads of equal shapes keep their rows")
        return None
    names = ClassNames(in_file, classes)
    if in_file != classes:
        log_line(names.describe())
    return names
