"""mmseg's segmentor, trained on whole images of any size.

mmengine imports this module when a config names its class, since it needs mmseg.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss
from torch import Tensor

from . import LAZY_MODELS
from .large_heads import pooled_head, replace_part
from .large_losses import heads_of, losses_by_windows, losses_of
from .locality import parts_that_see_windows
from .windows import CELL
from .xcit import STRIDES, Trunk, XCiT

TOLERANCE = 1e-4
"""Share of the largest value by which a part may differ in windows, before a training on a CPU."""
_OTHERWISE = "take FPN and FPNHead with BatchNorm, without align_corners, or train EncoderDecoder"


@LAZY_MODELS.register_module()
class WholeImageEncoderDecoder(EncoderDecoder):
    """mmseg's `EncoderDecoder` that trains on images of any size in bounded memory.

    The trunk passes over an image in bands of rows, and pyramid, neck and heads over windows of its
    maps. Losses and gradients are those of `EncoderDecoder`, to rounding. It has the same weights,
    and predicts the same. In a config::

        model = dict(
            type="xcit_mm.WholeImageEncoderDecoder",
            data_preprocessor=dict(size=None, size_divisor=32),
            backbone=dict(with_cp="bands", norm_eval=True),
        )

    Args:
        window: Side of the interiors of windows in pixels, rounded to multiples of 128. Its value
            changes time and memory, not gradients, unless BatchNorm of heads is in training mode:
            it sees a window as a batch.

    Raises:
        ValueError: If the backbone is not an XCiT with `with_cp="bands"`, or a head or its loss
            sees more than a part of an image.
    """

    def __init__(self, *args: Any, window: int = 384, **options: Any) -> None:
        super().__init__(*args, **options)
        self.window = window
        if type(self.backbone) is not XCiT or self.backbone.with_cp != "bands":
            fix = "give an XCiT with with_cp='bands' and norm_eval=True"
            raise ValueError(f"{type(self.backbone).__name__} cannot train on whole images: {fix}")
        for head in heads_of(self).values():
            check_loss(head)
        check_locality(self)

    def loss(self, inputs: Tensor, data_samples: Sequence[Any]) -> dict[str, Tensor]:
        """Compute the losses of normalised images (B, in_channels, H, W).

        Raises:
            ValueError: If a side is not a multiple of 32 pixels, or labels have another size.
        """
        size = tuple(inputs.shape[2:])
        of_labels = {tuple(sample.gt_sem_seg.data.shape[1:]) for sample in data_samples}
        if any(side % STRIDES[-1] for side in size) or of_labels != {size}:
            given = f"images of {size} and labels of {sorted(of_labels)} pixels"
            fix = "set data_preprocessor=dict(size=None, size_divisor=32)"
            raise ValueError(f"{given} must have the same size, in multiples of 32: {fix}")
        taps = Trunk.forward(self.backbone, inputs)
        return losses_by_windows(self, taps, data_samples, self.window)


def check_loss(head: Any) -> None:
    """Raise ValueError unless each loss of a head is a mean over pixels, which windows add up."""
    kind = type(head)
    name = kind.__name__
    methods = kind.loss, kind.loss_by_feat
    if methods != (BaseDecodeHead.loss, BaseDecodeHead.loss_by_feat):
        raise ValueError(f"{name} computes its loss in its own way: {_OTHERWISE}")
    if head.sampler is not None:
        problem = f"{type(head.sampler).__name__} in {name} selects pixels of the whole image"
        raise ValueError(f"{problem}: set sampler=None")
    for loss in losses_of(head):
        is_mean = type(loss) is CrossEntropyLoss and loss.reduction == "mean"
        if not is_mean or loss.use_sigmoid or loss.use_mask:
            problem = f"{type(loss).__name__} in {name} is not a plain mean over pixels"
            raise ValueError(f"{problem}: set loss_decode=dict(type='CrossEntropyLoss')")


def check_locality(model: Any) -> None:
    """Raise ValueError unless neck and heads compute in windows what they compute in the image."""
    trained = copy.deepcopy(model).eval()
    for weight in trained.parameters():
        if not weight.any():  # a branch that begins as zeros does not show what it sees
            weight.data = torch.linspace(-1, 1, weight.numel()).to(weight).view_as(weight)
    for head in heads_of(trained).values():
        alone = replace_part(trained, "decode_head", head)
        found = parts_that_see_windows(alone, CELL, TOLERANCE)
        # An image may end in the middle of a cell of 64 pixels, over which mmseg stretches logits.
        found += parts_that_see_windows(alone, CELL + STRIDES[-1], TOLERANCE)
        if pooled_head(alone) or head.align_corners:
            found.append(type(head).__name__)
        if found:
            problem = f"{found[0]} sees more than a window and {CELL} pixels around it"
            raise ValueError(f"{problem}: {_OTHERWISE}")
