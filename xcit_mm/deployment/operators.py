"""Non-maximum suppression and RoIAlign as traceable torch operators, and their translation to ONNX.

torchvision's operators, which onnxscript translates, would need torchvision, and its suppression
takes one image at a time.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import onnxscript
import torch
from torch import Tensor

op: Any = onnxscript.opset18


@torch.library.custom_op("xcit_mm::nms", mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, max_num: int) -> Tensor:
    """Select the best boxes of each image by non-maximum suppression.

    A box is selected if its IoU with each better selected box is at most `iou_threshold`.

    Args:
        boxes: (B, n, 4), as x1, y1, x2, y2.
        scores: (B, n). A box with a negative score is never selected.

    Returns:
        Index of the image and index of the box, (kept, 2), image by image, the best box first. An
        image has at most `max_num` of them.
    """
    from mmcv.ops import nms as suppress

    kept = []
    for image in range(boxes.shape[0]):
        index = (scores[image] >= 0).nonzero()[:, 0]
        candidates = boxes[image, index]
        _, best = suppress(candidates, scores[image, index], iou_threshold, max_num=max_num)
        kept.append(torch.stack([torch.full_like(best, image), index[best]], dim=1))
    return torch.cat(kept)


@nms.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float, max_num: int) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), 2, dtype=torch.long)


@torch.library.custom_op("xcit_mm::roi_align", mutates_args=())
def roi_align(
    features: Tensor, boxes: Tensor, images: Tensor, scale: float, size: int, ratio: int
) -> Tensor:
    """Pool boxes of feature maps by aligned RoIAlign.

    Args:
        features: (B, C, h, w).
        boxes: (n, 4), in pixels.
        images: Index of each box's image in the batch, (n,).
        scale: In cells of a map per pixel.
        ratio: Samples of a bin along each axis. 0 takes one for each cell of the map.

    Returns:
        (n, C, size, size).
    """
    from mmcv.ops import roi_align as pool

    rois = torch.cat([images[:, None].to(boxes), boxes], dim=1)
    return pool(features, rois, size, scale, ratio, "avg", True)


@roi_align.register_fake
def _(
    features: Tensor, boxes: Tensor, images: Tensor, scale: float, size: int, ratio: int
) -> Tensor:
    return boxes.new_empty(boxes.shape[0], features.shape[1], size, size)


def _onnx_nms(boxes: Any, scores: Any, iou_threshold: float, max_num: int) -> Any:
    kept = op.NonMaxSuppression(
        boxes,
        op.Unsqueeze(scores, [1]),
        op.Constant(value_ints=[max_num]),
        op.Constant(value_floats=[iou_threshold]),
        op.Constant(value_floats=[-1e-30]),  # below each score that is not negative
    )
    return op.Gather(kept, op.Constant(value_ints=[0, 2]), axis=1)  # of (image, class, box)


def _onnx_roi_align(
    features: Any, boxes: Any, images: Any, scale: float, size: int, ratio: int
) -> Any:
    return op.RoiAlign(
        features,
        boxes,
        images,
        mode="avg",
        coordinate_transformation_mode="half_pixel",
        output_height=size,
        output_width=size,
        sampling_ratio=ratio,
        spatial_scale=scale,
    )


def _onnx_gelu(x: Any, approximate: str = "none") -> Any:
    # onnxruntime fuses this order to one operator; torch's translation multiplies (1 + erf) by 0.5
    # first.
    assert approximate == "none", approximate
    erf = op.Erf(op.Div(x, op.Constant(value_float=sqrt(2))))
    return op.Mul(op.Mul(x, op.Add(erf, 1.0)), 0.5)


TO_ONNX: dict[Callable, Callable] = {
    torch.ops.aten.gelu.default: _onnx_gelu,
    torch.ops.xcit_mm.nms.default: _onnx_nms,
    torch.ops.xcit_mm.roi_align.default: _onnx_roi_align,
}
"""Translations to standard operators of ONNX, as `torch.onnx.export` takes them."""
