"""Non-maximum suppression and RoIAlign as traceable torch operators, and their translation to ONNX."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("xcit_mm::nms", mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: Tensor, score_threshold: Tensor, max_num: Tensor) -> Tensor:
    """Select the boxes (B, n, 4) of each image whose IoU with each better box is at most the threshold.

    Scores (B, n) must exceed the score threshold. Thresholds and the maximum number for an image are (1,). Returns the
    indices (kept, 2) of images and their boxes, the best box of each image first.
    """
    from mmcv.ops import nms as suppress

    kept = []
    for number, (own, values) in enumerate(zip(boxes, scores, strict=True)):
        index = (values > score_threshold).nonzero()[:, 0]
        _, best = suppress(own[index], values[index], iou_threshold.item(), max_num=int(max_num))
        kept.append(torch.stack([torch.full_like(best, number), index[best]], dim=1))
    return torch.cat(kept)


@nms.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: Tensor, score_threshold: Tensor, max_num: Tensor) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), 2, dtype=torch.long)


# torch 2.4 cannot infer a schema from `list[Tensor]`.
@torch.library.custom_op(
    "xcit_mm::roi_align",
    mutates_args=(),
    schema="(Tensor[] maps, Tensor boxes, Tensor images, Tensor levels, float[] scales, int size, int sampling_ratio) "
    "-> Tensor",
)
def roi_align(
    maps: list[Tensor],
    boxes: Tensor,
    images: Tensor,
    levels: Tensor,
    scales: list[float],
    size: int,
    sampling_ratio: int,
) -> Tensor:
    """Pool features (n, C, size, size) of boxes (n, 4), in pixels, by aligned RoIAlign.

    `images` and `levels` (n,) are the boxes' indices in the batch and of the `maps`, (B, C, h, w) each, with `scales`
    in cells per pixel. A bin has `sampling_ratio` samples per axis; 0: one per cell of the map.
    """
    from mmcv.ops import roi_align as pool

    pooled = boxes.new_zeros(len(boxes), maps[0].shape[1], size, size)
    for level, (features, scale) in enumerate(zip(maps, scales, strict=True)):
        chosen = (levels == level).nonzero()[:, 0]
        rois = torch.cat([images[chosen, None].to(boxes), boxes[chosen]], dim=1)
        pooled[chosen] = pool(features, rois, size, scale, sampling_ratio, "avg", True)
    return pooled


@roi_align.register_fake
def _(maps: list[Tensor], boxes: Tensor, images: Tensor, levels: Tensor, scales: list[float], size: int, _: int) -> Any:
    return boxes.new_empty(boxes.shape[0], maps[0].shape[1], size, size)


def to_onnx() -> dict[Callable, Callable]:
    """Return translations of these operators and GELU to standard operators of ONNX, for `torch.onnx.export`."""
    from onnxscript import opset18

    op: Any = opset18

    def onnx_nms(boxes: Any, scores: Any, iou_threshold: Any, score_threshold: Any, max_num: Any) -> Any:
        kept = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), max_num, iou_threshold, score_threshold)
        return op.Gather(kept, op.Constant(value_ints=[0, 2]), axis=1)  # of (image, class, box)

    def onnx_roi_align(
        maps: Any, boxes: Any, images: Any, levels: Any, scales: list[float], size: int, sampling_ratio: int
    ) -> Any:
        chosen, pooled = [], []
        for level, (features, scale) in enumerate(zip(maps, scales, strict=True)):
            indices = op.Squeeze(op.NonZero(op.Equal(levels, op.Constant(value_int=level))), [0])
            pooled.append(
                op.RoiAlign(
                    features,
                    op.Gather(boxes, indices),
                    op.Gather(images, indices),
                    coordinate_transformation_mode="half_pixel",
                    mode="avg",
                    output_height=size,
                    output_width=size,
                    sampling_ratio=sampling_ratio,
                    spatial_scale=scale,
                )
            )
            chosen.append(indices)
        order = op.Concat(*chosen, axis=0)
        positions = op.Range(op.Constant(value_int=0), op.Size(order), op.Constant(value_int=1))
        return op.Gather(op.Concat(*pooled, axis=0), op.ScatterElements(order, order, positions))

    def onnx_gelu(x: Any, approximate: str = "none") -> Any:
        # onnxruntime fuses this order to one operator; torch's translation multiplies (1 + erf) by 0.5 first.
        assert approximate == "none", approximate
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, op.Constant(value_float=sqrt(2)))), 1.0)), 0.5)

    return {
        torch.ops.aten.gelu.default: onnx_gelu,
        torch.ops.xcit_mm.nms.default: onnx_nms,
        torch.ops.xcit_mm.roi_align.default: onnx_roi_align,
    }
