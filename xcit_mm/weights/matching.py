"""Matching of a checkpoint to a model: it fills the model, or an error names the reason and nothing
is changed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..utils.compat import is_resuming, is_training_run
from ..utils.errors import preview
from .bands import FILL_HINT, RGB, check_stem_rule, stem_for_bands, stem_key
from .layouts import CLASSIFIER_PREFIXES, Weights, describe, parse_checkpoint
from .reader import load_checkpoint

_PYRAMID_PREFIXES = ("fpn1.", "fpn2.", "fpn3.", "fpn4.")
_MASK_HEAD = "roi_head.mask_head."
_KEEP_HINT = "to fine-tune: strict_heads=False in StrictLoadHook, or in init_cfg of a classifier"


class CheckpointMismatch(ValueError):
    """A checkpoint does not fit the model."""


def load_pretrained(
    backbone: nn.Module,
    checkpoint: str,
    use_ema: bool = False,
    strict_heads: bool = True,
    fill_stem: str | None = None,
) -> list[str]:
    """Fill a backbone or a classifier from a checkpoint in any layout: all of it, or nothing.

    See `match_trunk` for the parts that the checkpoint may lack and those that may remain unused.

    Args:
        backbone: An `XCiT` or an `XCiTClassifier`.
        checkpoint: A path, a URL or `xcit://NAME`.
        use_ema: Take the averaged weights of a training file, `model_ema` or timm's
            `state_dict_ema`, instead of its `model`.
        strict_heads: False lets the head of a classifier keep its initial values if the file has no
            head or a head for other classes.
        fill_stem: Rule of `bands.stem_for_bands` that makes a stem for the backbone's bands from a
            stem for red, green and blue.

    Returns:
        Names of the tensors of the pyramid or the head that keep their initial values.

    Raises:
        FileNotFoundError: If the file does not exist.
        ConnectionError: If it cannot be downloaded.
        ValueError: If it does not fit the backbone, which is left as it was.
    """
    content = load_checkpoint(checkpoint)
    try:
        weights = parse_checkpoint(content, use_ema)
        state = match_trunk(backbone, weights, strict_heads, fill_stem)
    except ValueError as error:
        raise ValueError(f"{checkpoint} does not fit the model: {error}") from None
    initial = backbone.load_state_dict(state, strict=False).missing_keys
    part = "head" if "head.weight" in initial else "pyramid"
    print_log(
        f"loaded {len(state)} tensors of {describe(weights.trunk)} ({weights.layout} layout) from {checkpoint}"
        + (f"; {len(initial)} of the {part} keep their initial values" if initial else ""),
        logger="current",
    )
    return initial


def match_model(
    model: nn.Module, checkpoint: dict, strict_heads: bool = True, fill_stem: str | None = None
) -> dict[str, Tensor]:
    """Return the state dict with which a checkpoint fills a detector, segmentor or classifier.

    `strict_heads` and `fill_stem` are those of `StrictLoadHook`. The model is not changed.

    Raises:
        CheckpointMismatch: If the checkpoint does not fit.
        ValueError: If the model has another backbone.
    """
    backbone: Any = getattr(model, "backbone", None)
    if not hasattr(backbone, "pretrained_options"):
        found = (
            "no backbone" if backbone is None else f"a {type(backbone).__name__} as its backbone"
        )
        fix = "leave StrictLoadHook out, or give backbone=dict(type='XCiT', ...)"
        raise ValueError(f"the model has {found}, not one of this package: {fix}")
    try:
        weights = parse_checkpoint(checkpoint)
        trunk_alone = not any(key in weights.trunk for key in model.state_dict())
        if not weights.heads and not hasattr(backbone, "cls_token") and trunk_alone:
            raise ValueError(f"it is a {weights.task}: give it to the backbone's init_cfg instead")
        trunk = match_trunk(backbone, weights, strict_heads, fill_stem)
        state = {f"backbone.{key}": value for key, value in trunk.items()}
        # A head that keeps its values has those of the model, since mmengine requires all tensors.
        return model.state_dict() | state | _match_heads(model, weights, strict_heads)
    except ValueError as error:
        raise CheckpointMismatch(f"the checkpoint does not fit the model: {error}") from None


def match_trunk(
    backbone: Any, weights: Weights, strict_heads: bool = True, fill_stem: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint that fill a backbone or a classifier.

    A detector or segmentor must fill the pyramid too; another file may lack it. A backbone leaves
    unused what only a classifier has, the blocks after its last tap, and levels of the pyramid that
    it does not have. A classifier without classes leaves the head unused. `strict_heads` and
    `fill_stem` are those of `load_pretrained`.

    Raises:
        ValueError: If they do not fit. If an option helps where training starts, the message names
            it.
    """
    expected = backbone.state_dict()
    found, asked = describe(weights.trunk), describe(expected, backbone.arch.depth)
    # A backbone whose last tap is not its last block has fewer blocks, and so has its own
    # checkpoint.
    if found not in (asked, describe(expected)):
        raise ValueError(f"the file is {found}, the config asks for {asked}")
    trunk = _with_stem_for_bands(weights.trunk, backbone.in_channels, fill_stem)
    if hasattr(backbone, "cls_token"):
        return _match_classifier(expected, replace(weights, trunk=trunk), strict_heads)
    if not weights.heads and not any(key.startswith(_PYRAMID_PREFIXES) for key in trunk):
        expected = _without(expected, _PYRAMID_PREFIXES)
    unused = (
        *(f"blocks.{index}." for index in range(len(backbone.blocks), backbone.arch.depth)),
        *(level for level in _PYRAMID_PREFIXES if not hasattr(backbone, level.removesuffix("."))),
        *(() if weights.heads else CLASSIFIER_PREFIXES),
    )
    return _check_coverage(expected, _without(trunk, unused))


def _with_stem_for_bands(
    trunk: dict[str, Tensor], bands: int, rule: str | None
) -> dict[str, Tensor]:
    """Return the trunk with a stem for images of so many bands, which a rule makes if the file has
    another stem.
    """
    key = stem_key(trunk)
    stem = trunk[key]
    if stem.shape[1] == bands:
        return trunk
    if stem.shape[1] != RGB or rule is None:
        hint = f"; {FILL_HINT}" if stem.shape[1] == RGB else ""
        raise ValueError(
            f"its stem is for {stem.shape[1]} bands, the model has in_channels={bands}{hint}"
        )
    return {**trunk, key: stem_for_bands(stem, bands, rule)}


def _match_classifier(
    expected: Mapping[str, Tensor], weights: Weights, strict: bool
) -> dict[str, Tensor]:
    if "cls_token" not in weights.trunk:
        raise ValueError(
            f"it is a {weights.task} without class attention: take a file trained on ImageNet or by DINO"
        )
    head, own_head = weights.trunk.get("head.weight"), expected.get("head.weight")
    # `_check_coverage` reports heads of other dimensions.
    if (
        head is not None
        and own_head is not None
        and (head.dim() != 2 or len(head) == len(own_head))
    ):
        return _check_coverage(expected, weights.trunk)
    if strict and own_head is not None:
        found = "has no head for classes" if head is None else f"has {len(head)} classes"
        raise ValueError(
            f"the file {found}, the model has num_classes={len(own_head)}; {_KEEP_HINT}"
        )
    return _check_coverage(_without(expected, "head."), _without(weights.trunk, "head."))


def _match_heads(model: nn.Module, weights: Weights, strict: bool) -> dict[str, Tensor]:
    expected = {
        key: value for key, value in model.state_dict().items() if not key.startswith("backbone.")
    }
    # `parse_checkpoint` leaves the head of a classifier with the trunk.
    given = weights.heads or {key: value for key, value in weights.trunk.items() if key in expected}
    resized = [key for key in expected if key in given and given[key].shape != expected[key].shape]
    if not strict and not any(
        key.startswith(_MASK_HEAD) for key in expected
    ):  # a Faster R-CNN from a Mask R-CNN
        given = _without(given, _MASK_HEAD)
    if resized and not strict:
        expected, given = _without(expected, tuple(resized)), _without(given, tuple(resized))
        print_log(
            f"other shapes, left at their initial values: {', '.join(resized)}", logger="current"
        )
    try:
        return _check_coverage(expected, given)
    except ValueError as error:
        hint = (
            f" (other classes? take the config that it was trained with; {_KEEP_HINT})"
            if strict
            else ""
        )
        raise ValueError(f"{error}{hint}") from None


def _without(state: Mapping[str, Tensor], prefixes: str | tuple[str, ...]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


def _check_coverage(expected: Mapping[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file if they are exactly the expected ones, with their shapes, and
    finite.
    """
    if missing := [key for key in expected if key not in given]:
        raise ValueError(f"it lacks {preview(missing)}")
    if unknown := [key for key in given if key not in expected]:
        raise ValueError(f"it holds the unknown {preview(unknown)}")
    if misfits := list(filter(None, [_misfit(key, given[key], expected[key]) for key in expected])):
        raise ValueError(f"it holds {preview(misfits)}")
    return given


def _misfit(key: str, given: Tensor, expected: Tensor) -> str:
    """Describe the difference of a tensor from the expected tensor; return '' if it fits."""
    if given.shape != expected.shape:
        return f"{key} of {tuple(given.shape)}, not {tuple(expected.shape)}"
    if given.is_floating_point() != expected.is_floating_point():
        return f"{key} of {given.dtype}, not {expected.dtype}"
    if given.is_floating_point() and not given.float().isfinite().all():  # float8 has no isfinite
        return f"{key} with values that are not finite"
    return ""


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Loads a whole detector, segmentor or classifier in mmengine, or raises before anything is
    loaded.

    It acts on `load_from`, testing and resuming. The file must hold every parameter and buffer of
    the model with its shape, and nothing else. It rejects the file of a backbone alone, with which
    the heads would stay random; `init_cfg` loads such a file.

    Args:
        strict_heads: False lets heads of other shapes, for example for other classes, keep their
            initial values when training starts from `load_from`, and lists them. Testing and
            resuming stay strict.
        fill_stem: Rule of `xcit_mm.weights.bands.stem_for_bands`, 'rgb-mean', 'rgb-zero' or 'mean',
            that makes a stem for the model's `in_channels` when training starts from a `load_from`
            of a model for RGB. A file with as many bands as the model loads unchanged.

    Raises:
        ValueError: If the rule is unknown.
    """

    priority = (
        "VERY_HIGH"  # before a hook copies the checkpoint's tensors, as EMAHook does by their names
    )

    def __init__(self, strict_heads: bool = True, fill_stem: str | None = None) -> None:
        check_stem_rule(fill_stem)
        self.strict_heads = strict_heads
        self.fill_stem = fill_stem

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors the names of the model.

        Raises:
            CheckpointMismatch: A ValueError, if the checkpoint does not fit. The model stays
                unchanged.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        starts_training = is_training_run(runner) and not is_resuming(runner)
        strict_heads, fill_stem = (
            (self.strict_heads, self.fill_stem) if starts_training else (True, None)
        )
        checkpoint["state_dict"] = match_model(model, checkpoint, strict_heads, fill_stem)
