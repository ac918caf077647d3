"""The class of each pixel, found without the logits of all classes at the size of the image."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .large_heads import head_with_data

# Logits at full size at one time: 64 MiB.
LOGITS = 2**24


def has_plain_labels(model: Any) -> bool:
    """Return whether a model labels each pixel by its largest logit, as EncoderDecoder does."""
    if not hasattr(model, "decode_head"):  # a detector does not need to import mmseg
        return False
    from mmseg.models import EncoderDecoder
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    kind: Any = type(model)
    names = "predict", "inference", "encode_decode", "postprocess_result"
    if any(getattr(kind, name, None) is not getattr(EncoderDecoder, name) for name in names):
        return False
    if (model.test_cfg or {}).get("mode") == "slide":
        return False
    head: Any = type(model.decode_head)
    methods = head.predict, head.predict_by_feat
    return methods == (BaseDecodeHead.predict, BaseDecodeHead.predict_by_feat)


def predict_labels(
    model: Any, images: Tensor, samples: Sequence[Any], valid: Tensor | None = None
) -> list[Tensor]:
    """Predict the class of each pixel of each image, as `model.predict` does.

    The logits of all classes are never in memory at full size.

    Args:
        model: One of `has_plain_labels`.
        samples: Data samples of mmseg, which say how images were resized and padded. The images
            must not be flipped.
        valid: Which pixels count in pools over the image, (B, 1, H, W). Default: all.

    Returns:
        For each image (H, W), in its size before it was resized and padded.
    """
    features = model.extract_feat(images)
    head = model.decode_head
    if valid is not None:
        head = head_with_data(model, features, valid)
    logits = head(features)
    del features  # which are larger
    # Images of a batch are of one size.
    first = samples[0].metainfo
    size = first.get("pad_shape", first["img_shape"])[:2]
    return [
        _labels_of(one, size, sample.metainfo, model)
        for one, sample in zip(logits.split(1), samples, strict=True)
    ]


def _labels_of(logits: Tensor, size: Sequence[int], meta: dict[str, Any], model: Any) -> Tensor:
    """Return the class of each pixel of an image, that of its largest logit, (H, W).

    Args:
        logits: (1, classes, h, w).
        size: Height and width of the image as the model saw it.
    """
    own_size = meta["ori_shape"][:2]
    padding = meta.get("img_padding_size", meta.get("padding_size", [0] * 4))
    left, right, top, bottom = padding

    def enlarge(x: Tensor) -> Tensor:
        x = F.interpolate(x, size, mode="bilinear", align_corners=model.align_corners)
        x = x[:, :, top : size[0] - bottom, left : size[1] - right]
        if x.shape[2:] != own_size:
            x = F.interpolate(x, own_size, mode="bilinear", align_corners=model.align_corners)
        return x

    if logits.shape[1] == 1:
        return (enlarge(logits).sigmoid() > model.decode_head.threshold)[0, 0].byte()
    count = max(1, LOGITS // max(math.prod(size), math.prod(own_size)))
    best = labels = torch.empty(0)
    for start in range(0, logits.shape[1], count):
        values, classes = enlarge(logits[:, start : start + count])[0].max(dim=0)
        classes = classes.add_(start).to(torch.int16)
        if start > 0:
            is_better = values > best  # of equal ones, the first class stays
            values = torch.where(is_better, values, best)
            classes = torch.where(is_better, classes, labels)
        best = values
        labels = classes
    return labels
