"""Matching of a file to a model: it fills the model, or an error says why not."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from . import reader  # noqa: F401  registers the readers with mmengine
from .bands import FILL_HINT, RGB, stem_for_bands, stem_key
from .layouts import CLASSIFIER, Weights, describe, recognise

__all__ = ["BandMismatch", "CheckpointMismatch", "HeadMismatch", "load_pretrained", "match_model", "match_trunk"]

# What a file for classification may lack.
_PYRAMID = ("fpn1.", "fpn2.", "fpn3.", "fpn4.")
_DENSE = ("detector", "segmentor")


class CheckpointMismatch(ValueError):
    """A checkpoint that does not fit the model."""


class HeadMismatch(CheckpointMismatch):
    """One whose heads do not, such as those for other classes."""


class BandMismatch(CheckpointMismatch):
    """One whose stem is for red, green and blue, where the model's is for other bands and no rule was given."""


def load_pretrained(
    backbone: nn.Module,
    checkpoint: str,
    use_ema: bool = False,
    strict_heads: bool = True,
    fill_stem: str | None = None,
) -> None:
    """Fill a backbone or a classifier from a checkpoint in any layout: all of it, or nothing.

    A dense model's file must fill the pyramid too; another's may lack it. Only what belongs to
    classification may be left over by a backbone, and blocks past the last of `out_indices`; by a
    classifier without classes, only the head.

    Args:
        backbone: An `XCiT` or an `XCiTClassifier`.
        checkpoint: A path, a URL or `xcit://NAME`.
        use_ema: Take the averaged weights of a training file, `model_ema` or timm's `state_dict_ema`, instead of
            its `model`.
        strict_heads: False lets the head of a classifier keep its initial values where the file has
            none or one for other classes.
        fill_stem: A rule of `bands.stem_for_bands` that makes a stem for the backbone's bands where the file's is for
            red, green and blue.

    Raises:
        FileNotFoundError: If there is no such file.
        ConnectionError: If it cannot be downloaded.
        ValueError: If it does not fit the backbone, which is left as it was.
    """
    content = CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu")
    try:
        weights = recognise(content, use_ema)
        state = match_trunk(backbone, weights, strict_heads, fill_stem)
    except BandMismatch as error:
        raise ValueError(f"{checkpoint} does not fit the model: {error}: {FILL_HINT} in init_cfg makes one") from None
    except HeadMismatch as error:
        raise ValueError(
            f"{checkpoint} does not fit the model: {error}: strict_heads=False keeps the model's own head, "
            "for fine-tuning"
        ) from None
    except ValueError as error:
        raise ValueError(f"{checkpoint} does not fit the model: {error}") from None
    initial = backbone.load_state_dict(state, strict=False).missing_keys
    part = "head" if "head.weight" in initial else "pyramid"
    bands = state[stem_key(state)].shape[1]
    filled = bands != weights.trunk[stem_key(state)].shape[1]
    print_log(
        f"loaded {len(state)} tensors of {describe(weights.trunk)} ({weights.layout} layout) from {checkpoint}"
        + (f"; {len(initial)} of the {part} keep their initial values" if initial else "")
        + (f"; its stem for {RGB} bands made one for {bands} by {fill_stem!r}" if filled else ""),
        logger="current",
    )


def match_model(
    model: nn.Module, checkpoint: dict, strict_heads: bool = True, fill_stem: str | None = None
) -> dict[str, Tensor]:
    """The state dict of a detector, segmentor or classifier from a checkpoint, which fills it.

    Args:
        model: With an `XCiT` or an `XCiTClassifier` as its backbone; it is not changed.
        checkpoint: Content of a file in any layout.
        strict_heads: As of `StrictLoadHook`.
        fill_stem: As of `StrictLoadHook`.

    Raises:
        CheckpointMismatch: If the checkpoint does not fit; a HeadMismatch if `strict_heads=False` might help, a
            BandMismatch if `fill_stem` might.
        ValueError: If the model's backbone is none of these.
    """
    backbone: Any = getattr(model, "backbone", None)
    _check_is_xcit(backbone)
    try:
        weights = recognise(checkpoint)
        alone = not any(key in weights.trunk for key in model.state_dict())
        if weights.task not in _DENSE and not _is_classifier(backbone) and alone:
            raise ValueError(f"it is a {weights.task}: give it to the backbone's init_cfg instead")
        matched = match_trunk(backbone, weights, strict_heads, fill_stem)
        state = {f"backbone.{key}": value for key, value in matched.items()}
        # A head left as it is has the model's own values, since mmengine loads what is there.
        return model.state_dict() | state | _match_heads(model, weights, strict_heads)
    except ValueError as error:
        kind = type(error) if isinstance(error, CheckpointMismatch) else CheckpointMismatch
        raise kind(f"the checkpoint does not fit the model: {error}") from None


def _match_heads(model: nn.Module, weights: Weights, strict: bool) -> dict[str, Tensor]:
    wanted = {key: value for key, value in model.state_dict().items() if not key.startswith("backbone.")}
    # Of a classifier, `recognise` leaves a head with the trunk.
    given = weights.heads or {key: value for key, value in weights.trunk.items() if key in wanted}
    other = [key for key in wanted if key in given and given[key].shape != wanted[key].shape]
    if other and not strict:
        wanted, given = _without(other, wanted), _without(other, given)
        print_log(f"of other shapes, left at their initial values: {', '.join(other)}", logger="current")
    try:
        _check_coverage(wanted, given, missing=wanted, surplus=given)
    except ValueError as error:
        raise HeadMismatch(f"{error} (other classes? take the config that it was trained with)") from None
    return given


def match_trunk(
    backbone: Any, weights: Weights, strict_heads: bool = True, fill_stem: str | None = None
) -> dict[str, Tensor]:
    """The tensors of `weights` for a backbone or a classifier, which they fill but for what `load_pretrained` names.

    Args:
        backbone: A `Trunk`, an `XCiT` or an `XCiTClassifier`; it is not changed.
        weights: As `recognise` gives them.
        strict_heads: As of `load_pretrained`.
        fill_stem: As of `load_pretrained`.

    Raises:
        ValueError: If they do not fit, or `backbone` is none of these; a HeadMismatch if `strict_heads=False` might
            help, a BandMismatch if `fill_stem` might.
    """
    _check_is_xcit(backbone)
    found, asked = describe(weights.trunk), backbone.describe(backbone.arch.depth)
    # A backbone whose last tap is not its last block has fewer, and so has its own checkpoint.
    if found not in (asked, backbone.describe(len(backbone.blocks))):
        raise ValueError(f"the file is {found}, the config asks for {asked}")
    weights = replace(weights, trunk=_for_bands(weights.trunk, backbone.in_channels, fill_stem))
    if _is_classifier(backbone):
        return _match_classifier(backbone.state_dict(), weights, strict_heads)
    wanted = backbone.state_dict()
    dense = weights.task in _DENSE
    unused = tuple(f"blocks.{index}." for index in range(len(backbone.blocks), backbone.arch.depth))
    optional = unused + (() if dense else CLASSIFIER)
    whole = dense or any(key.startswith(_PYRAMID) for key in weights.trunk)
    missing = wanted if whole else [key for key in wanted if not key.startswith(_PYRAMID)]
    # Levels of strides that were not asked for.
    optional += tuple(level for level in _PYRAMID if not hasattr(backbone, level.removesuffix(".")))
    surplus = [key for key in weights.trunk if not key.startswith(optional)]
    _check_coverage(wanted, weights.trunk, missing, surplus)
    return {key: value for key, value in weights.trunk.items() if key in wanted}


def _for_bands(trunk: dict[str, Tensor], bands: int, rule: str | None) -> dict[str, Tensor]:
    """The trunk with a stem for images of so many bands, made by a rule if it has not one already.

    Raises:
        BandMismatch: If it is for RGB, and there is no rule.
        ValueError: If it is for yet others.
    """
    key = stem_key(trunk)
    stem = trunk.get(key)
    if stem is None or stem.dim() != 4 or stem.shape[1] == bands:  # what else is wrong with it is told with the rest
        return trunk
    misfit = f"its stem is for {stem.shape[1]} bands, the model has in_channels={bands}"
    if stem.shape[1] != RGB:
        raise ValueError(misfit)
    if rule is None:
        raise BandMismatch(misfit)
    return {**trunk, key: stem_for_bands(stem, bands, rule)}


def _check_is_xcit(backbone: Any) -> None:
    if not hasattr(backbone, "describe"):
        found = "no backbone" if backbone is None else f"a {type(backbone).__name__} as its backbone"
        raise ValueError(
            f"the model has {found}, where one of this package is filled: leave StrictLoadHook out, or give "
            "backbone=dict(type='XCiT', ...)"
        )


def _without(keys: Collection[str], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if key not in keys}


def _is_classifier(backbone: nn.Module) -> bool:
    return hasattr(backbone, "cls_token")


def _match_classifier(wanted: Mapping[str, Tensor], weights: Weights, strict: bool) -> dict[str, Tensor]:
    if "cls_token" not in weights.trunk:
        raise ValueError(f"it is a {weights.task} without class attention: take a file trained on ImageNet or by DINO")
    given: Mapping[str, Tensor] = weights.trunk
    if "head.weight" not in wanted or not _same_classes(wanted, given, strict):
        heads = [key for key in (*wanted, *given) if key.startswith("head.")]
        wanted, given = _without(heads, wanted), _without(heads, given)
    _check_coverage(wanted, given, missing=wanted, surplus=given)
    return dict(given)


def _same_classes(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], strict: bool) -> bool:
    """Whether the file's head has as many classes as the model's.

    Raises:
        HeadMismatch: If it has not and `strict`.
    """
    head, classes = given.get("head.weight"), len(wanted["head.weight"])
    if head is None:
        found = "has no head for classes"
    elif head.dim() == 2 and len(head) != classes:
        found = f"has {len(head)} classes"
    else:
        return True
    if strict:
        raise HeadMismatch(f"the file {found}, the model has num_classes={classes}")
    return False


def _check_coverage(
    wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], missing: Iterable[str], surplus: Iterable[str]
) -> None:
    """Raise a ValueError that names the first keys wanted and not given, given and not wanted, or given wrongly."""
    problems = {
        "it lacks": [key for key in missing if key not in given],
        "it holds the unknown": [key for key in surplus if key not in wanted],
        "it holds": [_misfit(key, given[key], wanted[key]) for key in wanted if key in given],
    }
    for problem, keys in problems.items():
        keys = [key for key in keys if key]
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise ValueError(f"{problem} {', '.join(keys[:3])}{more}")


def _misfit(key: str, given: Tensor, wanted: Tensor) -> str:
    """What is wrong with a tensor, or ''."""
    if given.shape != wanted.shape:
        return f"{key} of {tuple(given.shape)}, not {tuple(wanted.shape)}"
    if given.is_floating_point() != wanted.is_floating_point():
        return f"{key} of {given.dtype}, not {wanted.dtype}"
    if given.is_floating_point() and not _is_finite(given):
        return f"{key} with values that are not finite"
    return ""


def _is_finite(tensor: Tensor) -> bool:
    # One pass and no copy: a sum is finite only if all its terms are. A sum may overflow, though.
    return bool(tensor.sum(dtype=torch.float64).isfinite()) or bool(tensor.double().isfinite().all())
