"""Match a checkpoint to a model: it fills the whole model, or an error says why not."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..utils.errors import preview
from ..utils.output import log_line
from .class_names import KEEP_HINT
from .layouts import (
    PYRAMID_PREFIXES,
    Weights,
    parse_checkpoint,
    without,
)
from .lookup import load_checkpoint

_MASK_HEAD_PREFIX = "roi_head.mask_head."  # of mmdet


def load_pretrained(
    backbone: Any,
    checkpoint: str,
    use_ema: bool = False,
    strict_heads: bool = True,
    fill_stem: bool = False,
    prefix: str | None = None,
) -> None:
    """Fill a backbone or a classifier from a checkpoint in any layout: all of it, or nothing.

    A file has the whole pyramid or none of it. Tensors for parts that the model does not have, such
    as class attention or blocks after the last tap, remain unused.

    Args:
        backbone: A backbone of this package.
        checkpoint: See `load_checkpoint`.
        use_ema, prefix: See `parse_checkpoint`.
        strict_heads: False lets the head of a classifier keep its initial values if the file has no
            head, or a head for another number of classes.
        fill_stem: Whether `stem_for_bands` makes the stem of a backbone for other bands from a file
            for RGB.

    Raises:
        OSError: If the file does not exist or cannot be downloaded.
        ValueError: If it does not fit the backbone, which is left as it was, or if the backbone is
            on the meta device, where torch drops weights without an error.
    """
    if any(parameter.is_meta for parameter in backbone.parameters()):
        raise ValueError("the backbone is on the meta device: build it on the CPU or on a GPU")
    loaded = load_checkpoint(checkpoint)
    try:
        weights = parse_checkpoint(loaded, use_ema, prefix)
        state = backbone.match_weights(weights, strict_heads, fill_stem)
    except ValueError as error:
        raise ValueError(f"{checkpoint} does not fit the model: {error}") from None
    initial = backbone.load_state_dict(state, strict=False).missing_keys
    place = f"{weights.prefix}* of {checkpoint}" if weights.prefix else checkpoint
    message = f"loaded {len(state)} tensors of {backbone.describe_weights(weights)} from {place}"
    if initial:
        part = "head" if "head.weight" in initial else "pyramid"
        message += f"; {len(initial)} of the {part} keep their initial values"
    log_line(message)


def match_model(
    model: nn.Module,
    checkpoint: dict,
    strict_heads: bool = True,
    fill_stem: bool = False,
    prefix: str | None = None,
) -> dict[str, Tensor]:
    """Return the state dict with which a checkpoint fills a detector, segmentor or classifier.

    The options are those of `StrictLoadHook`.

    Raises:
        ValueError: If the model has another backbone, or if the file does not fit.
    """
    backbone: Any = getattr(model, "backbone", None)
    if not hasattr(backbone, "match_weights"):
        name = type(backbone).__name__
        fix = "give an XCiT, or load the file with mmengine, without StrictLoadHook"
        raise ValueError(f"the model's backbone, {name}, is not one of this package: {fix}")
    initial = model.state_dict()
    expected_heads = without(initial, "backbone.")
    try:
        weights = parse_checkpoint(checkpoint, prefix=prefix)
        weights.needs_pyramid = True
        # The head of a segmentor or classifier may be named `head.`, which counts as trunk.
        heads = weights.heads or {
            key: tensor for key, tensor in weights.trunk.items() if key in expected_heads
        }
        if expected_heads and not heads:
            raise ValueError(f"it is a {weights.task}: give it to the backbone's init_cfg instead")
        trunk = backbone.match_weights(weights, strict_heads, fill_stem)
        heads = match_heads(expected_heads, heads, strict_heads)
    except ValueError as error:
        raise ValueError(f"the checkpoint does not fit the model: {error}") from None
    # mmengine requires all tensors. Layers that the file does not fill keep their initial values.
    return initial | {f"backbone.{key}": tensor for key, tensor in trunk.items()} | heads


def match_backbone(
    backbone: Any, weights: Weights, depth: int, unused: tuple[str, ...], prefix: str = ""
) -> dict[str, Tensor]:
    """Return the tensors that fill a backbone.

    Tensors for blocks after the last tap and for other levels of the pyramid are left out.

    Args:
        depth: Number of blocks that the file may have.
        unused: More prefixes of tensors that are left out, and that the backbone need not get.
        prefix: What precedes the names of the backbone's trunk, but not those of its pyramid.
    """
    left_out = unused if weights.needs_pyramid else (*unused, *PYRAMID_PREFIXES)
    expected = without(backbone.state_dict(), left_out)
    after_taps = range(backbone.out_indices[-1] + 1, depth)
    lacking = [level for level in PYRAMID_PREFIXES if not hasattr(backbone, level[:-1])]
    unused = (*unused, *lacking, *(f"blocks.{index}." for index in after_taps))
    state = {
        key if key.startswith(PYRAMID_PREFIXES) else prefix + key: tensor
        for key, tensor in without(weights.trunk, unused).items()
    }
    check_coverage(expected, state)
    return state


def match_heads(
    expected: dict[str, Tensor], heads: dict[str, Tensor], strict: bool
) -> dict[str, Tensor]:
    """Return the tensors that fill the heads: all, or those of equal shapes if not `strict`."""
    if not strict:
        # A Faster R-CNN may start from the file of a Mask R-CNN.
        if not any(key.startswith(_MASK_HEAD_PREFIX) for key in expected):
            heads = without(heads, (_MASK_HEAD_PREFIX,))
        others = [
            key
            for key, tensor in expected.items()
            if key not in heads or heads[key].shape != tensor.shape
        ]
        if others:
            line = "the file has no layers of these shapes, so they keep their initial values"
            log_line(f"{line}: {', '.join(others)}")
        heads = {key: tensor for key, tensor in heads.items() if key not in others}
        expected = {key: tensor for key, tensor in expected.items() if key in heads}
    try:
        check_coverage(expected, heads)
    except ValueError as error:
        hint = f"if it has other classes, take the config of its training; {KEEP_HINT}"
        raise ValueError(f"{error} ({hint})") from None
    return heads


def check_coverage(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if tensors do not fill a model.

    They have other names or shapes than the expected, integers in place of floating point numbers
    or the other way round, or values that are not finite.
    """
    missing = [key for key in expected if key not in state]
    if missing:
        raise ValueError(f"it has no {preview(missing)}")
    unknown = [key for key in state if key not in expected]
    if unknown:
        raise ValueError(f"it holds {preview(unknown)}, which the model does not have")
    for key, tensor in state.items():
        shape = tuple(expected[key].shape)
        if tensor.shape != shape:
            raise ValueError(f"it holds {key} with shape {tuple(tensor.shape)}, not {shape}")
        if tensor.is_floating_point() != expected[key].is_floating_point():
            raise ValueError(f"it holds {key} with {tensor.dtype}, not {expected[key].dtype}")
        if not tensor.isfinite().all():
            raise ValueError(f"it holds {key} with values that are not finite")
