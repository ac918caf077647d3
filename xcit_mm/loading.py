"""The model that a file of weights is of, built and filled."""

import logging
from collections.abc import Mapping

import torch
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor

from .backbone import Trunk, XCiT
from .checkpoint import fitting_trunk
from .classifier import XCiTClassifier
from .layouts import backbone_options, recognise
from .pyramid import STRIDES

__all__ = ["load_model"]


def load_model(checkpoint: str, device: str | None = None, use_ema: bool = False) -> Trunk:
    """The model of a file in any layout, in eval mode.

    What a file does not tell is taken as published: the blocks that are tapped, and class attention's `tokens_norm`,
    which is logged for shapes that are not published.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        use_ema: Take the `model_ema` of a training file.

    Returns:
        An `XCiTClassifier` if the file has class attention, without a head if the file has none (DINO's); an
        `XCiT` if it has the pyramid, as detectors and segmentors do; else a `Trunk`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no whole XCiT.
    """
    try:
        weights = recognise(CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu", logger="silent"), use_ema)
        options, trunk = backbone_options(weights.trunk), weights.trunk
        if "cls_token" in trunk:
            model = XCiTClassifier(num_classes=len(trunk.get("head.weight", ())), **options)
            if not isinstance(options["arch"], str):
                print_log(f"{checkpoint} does not tell tokens_norm: taken as True", "current", logging.WARNING)
        elif any(key.startswith("fpn") for key in trunk):
            model = XCiT(strides=_strides(trunk, options["patch_size"]), **options)
        else:
            model = Trunk(**options)
        model.load_state_dict(fitting_trunk(model, weights))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    return model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _strides(trunk: Mapping[str, Tensor], patch_size: int) -> tuple[int, ...]:
    """Strides of a pyramid; those from `patch_size` on have no parameters and count as there."""
    names = {stride: f"fpn{number}." for number, stride in enumerate(STRIDES, start=1)}
    return tuple(s for s in STRIDES if s >= patch_size or any(key.startswith(names[s]) for key in trunk))
