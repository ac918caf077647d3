"""Checks of the model: whether it can be built, and who reads its feature maps, at what stride."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ..models import Pyramid
from ..models.build import model_config
from ..utils.errors import reason
from .findings import Finding, fail, listed, ok

_SIDE = 512  # pixels of the square image whose feature maps are computed, a multiple of all strides
_HEAD = re.compile(r".*(?<!rpn_)(?<!semantic_)head(\.\d+)?")  # with a number in a cascade
_OTHER_HEADS = ("RPNHead", "STDCHead")  # types of heads that predict other classes


class CheckedModel:
    """The model of a config, on the meta device, without memory, where possible.

    Attributes:
        module: The model, or an empty module if it cannot be built, as `failures` tells.
    """

    def __init__(self, cfg: Config) -> None:
        init_default_scope(cfg.default_scope)
        self.module: Any = nn.Module()
        self.failures = []
        try:
            model = model_config(cfg)
            try:
                with torch.device("meta"):
                    self.module = MODELS.build(model)
            except Exception:  # modules that compute with their own values need real tensors
                self.module = MODELS.build(model)
        except Exception as error:  # a wrong config makes the libraries raise nearly any exception
            problem = f"the model cannot be built: {reason(error)}"
            self.failures = [fail("", problem, "correct the model in the config")]

    @property
    def heads(self) -> dict[str, Any]:
        """The heads that predict the classes of the data set, by name."""
        is_panoptic = hasattr(self.module, "panoptic_fusion_head")  # boxes are of things alone
        return {
            name: part
            for name, part in self.module.named_modules()
            if _HEAD.fullmatch(name)
            and not type(part).__name__.endswith(_OTHER_HEADS)
            and isinstance(getattr(part, "num_classes", None), int)
            and not getattr(part, "class_agnostic", False)
            and not (is_panoptic and name.startswith("roi_head."))
        }


def check_maps(model: Any, is_distributed: bool = False) -> Iterator[Finding]:
    """Check that the neck takes the feature maps of an image, and that heads expect what it gives.
    In a distributed training, heads need to read all that the backbone trains.
    """
    if not isinstance(getattr(model, "backbone", None), Pyramid):
        return
    device = next(model.parameters()).device
    image = torch.zeros(2, model.backbone.in_channels, _SIDE, _SIDE, device=device)
    maps = model.train().backbone(image)
    source = "the backbone"
    if getattr(model, "neck", None) is not None:
        channels = [feature_map.shape[1] for feature_map in maps]
        expected = getattr(model.neck, "in_channels", None)
        if isinstance(expected, list | tuple) and list(expected) != channels:
            problem = f"neck.in_channels is {expected}, the backbone gives {channels}"
            yield fail("", problem, f"model.neck.in_channels={channels}")
            return
        maps = model.neck(maps)
        source = "the neck"
    strides = [_SIDE / feature_map.shape[3] for feature_map in maps]
    read: list[Tensor] = []
    for name, part in model.named_modules():
        wanted = _expected_strides(name, part)
        if wanted[: len(strides)] != strides[: len(wanted)]:
            problem = f"{name} expects maps of strides {wanted}, {source} gives {strides}"
            yield fail("D606", problem, f"these strides in {name}, or start_level=0 in the neck")
        indices = np.ravel(getattr(part, "in_index", [])).astype(int)  # of mmseg's heads
        if any(indices >= len(maps)):
            yield fail("", f"{name}.in_index={part.in_index}: {source} gives {len(maps)} maps")
            return
        read += [maps[index] for index in indices]
    yield ok(f"{source} gives maps of the strides {strides}")
    if is_distributed:
        yield from _check_gradients(model.backbone, read or maps)


def _check_gradients(backbone: Any, read: Sequence[Tensor]) -> Iterator[Finding]:
    """Check that all trained parameters have gradients from the maps that heads read."""
    trained = {name: value for name, value in backbone.named_parameters() if value.requires_grad}
    total: Any = sum(feature_map.sum() for feature_map in read)
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    unused = [name for name, gradient in zip(trained, gradients, strict=True) if gradient is None]
    parts = {name.partition(".")[0] for name in unused}
    problem = "parts of the backbone train for no head, at which several processes stop"
    fix = f"leave levels that no head reads out of model.backbone.strides={backbone.strides}"
    yield from listed("note", "", sorted(parts), problem, fix)


def _expected_strides(name: str, part: Any) -> list[float]:
    """Return the strides by which a module converts positions on feature maps into pixels, if it
    does. RoI extractors take the first maps.
    """
    generator = getattr(part, "prior_generator", None)  # of anchors or points
    if generator is not None:
        return [stride[0] for stride in generator.strides]
    is_decoder = name.endswith("pixel_decoder")  # of Mask2Former
    return list(getattr(part, "strides" if is_decoder else "featmap_strides", []))
