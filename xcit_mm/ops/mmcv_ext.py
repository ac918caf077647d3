"""Functions of `mmcv._ext`, the compiled operators of mmcv, with their names and arguments.

The functions write into the tensors named `output` and `grad_...`, except that `grad_output` is an
input. `argmax_x` and `argmax_y` are work space of the compiled operators, and `im2col_step` is
their number of images at a time. They are unused here. Other operators raise when they are called.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.compat import roi_align_backward_kernel
from . import deform_conv
from .kernels import raise_missing, torchvision_kernels, write_gradients
from .roi_align import Sampling, roi_align, roi_align_gradient

NMS_PAIRS = 65536  # pairs of boxes that `nms` compares at a time, so that they stay in the cache


def __getattr__(name: str) -> Callable:
    """Return a function of `deform_conv`, or a function that raises.

    `mmcv.ops` looks up all operators when it is imported.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(deform_conv, name, functools.partial(raise_missing, name))


def _find_gpu_kernels(tensor: Tensor) -> Any:
    """Return torchvision's kernels for a tensor on a GPU. On a CPU the torch code is as fast."""
    return torchvision_kernels() if tensor.is_cuda else None


def _convert_bfloat16(tensor: Tensor) -> Tensor:
    """Convert bfloat16, which torchvision's kernels do not take, to float32."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def get_compiler_version() -> str:
    return "none (xcit_mm.ops)"


get_compiling_cuda_version = get_compiler_version


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices (kept,) of the boxes that overlap no better box, by descending score.

    Args:
        boxes: (n, 4), x1, y1, x2, y2 in pixels.
        scores: (n,)
        iou_threshold: A box is dropped if its intersection over union with a better box is larger.
        offset: 1 if x2 and y2 are the last pixels of the box, 0 if they are its border.
    """
    kernels = _find_gpu_kernels(boxes)
    if kernels and offset == 0:
        return kernels.nms(_convert_bfloat16(boxes), _convert_bfloat16(scores), iou_threshold)
    order = scores.sort(descending=True).indices
    dtype = torch.promote_types(boxes.dtype, torch.float32)
    corners = boxes[order].detach().to("cpu", dtype).T.contiguous().numpy()
    remaining = np.arange(len(order))
    kept = []
    while len(remaining):
        count = 1 + NMS_PAIRS // len(remaining)  # the best boxes
        overlaps = _iou(corners[:, :count, None], corners[:, None], offset) > iou_threshold
        is_dropped = np.zeros(len(remaining), bool)
        for row, overlap in enumerate(overlaps):
            if not is_dropped[row]:
                kept.append(remaining[row])
                is_dropped |= overlap
        is_dropped[:count] = True
        corners = corners[:, ~is_dropped]
        remaining = remaining[~is_dropped]
    return order[kept]


def _iou(a: np.ndarray, b: np.ndarray, offset: int) -> np.ndarray:
    """Return the intersection over union (m, n) of boxes (4, m, 1) and (4, 1, n), 0 without area.

    `offset` is 1 if x2 and y2 are the last pixels of a box, 0 if they are its border.
    """
    ax1, ay1, ax2, ay2 = a
    bx1, by1, bx2, by2 = b
    width = np.minimum(ax2, bx2) - np.maximum(ax1, bx1) + offset
    height = np.minimum(ay2, by2) - np.maximum(ay1, by1) + offset
    intersection = width.clip(min=0) * height.clip(min=0)
    area_a = (ax2 - ax1 + offset) * (ay2 - ay1 + offset)
    area_b = (bx2 - bx1 + offset) * (by2 - by1 + offset)
    union = area_a + area_b - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union != 0)


def _parse_sampling(options: dict[str, Any]) -> Sampling:
    """Convert the options of mmcv's RoIAlign, or raise NotImplementedError for max pooling."""
    if options["pool_mode"] == 0:
        raise_missing("roi_align with pool_mode='max'")
    bins = options["aligned_height"], options["aligned_width"]
    return Sampling(bins, options["spatial_scale"], options["sampling_ratio"], options["aligned"])


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **options: Any
) -> None:
    sampling = _parse_sampling(options)
    kernels = _find_gpu_kernels(input)
    if kernels:
        maps = _convert_bfloat16(input)
        pooled = kernels.roi_align(
            maps, rois.to(maps), sampling.scale, *sampling.bins, sampling.ratio, sampling.aligned
        )
    else:
        pooled = roi_align(input, rois, sampling)
    output.copy_(pooled)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    **options: Any,
) -> None:
    sampling = _parse_sampling(options)
    shape = tuple(grad_input.shape)
    kernels = _find_gpu_kernels(grad_output)
    if kernels:
        backward = roi_align_backward_kernel(kernels)
        grad_pooled = _convert_bfloat16(grad_output)
        rois = rois.to(grad_pooled)
        sizes = (*sampling.bins, *shape)
        grad = backward(grad_pooled, rois, sampling.scale, *sizes, sampling.ratio, sampling.aligned)
    else:
        grad = roi_align_gradient(grad_output, rois, shape, sampling)
    grad_input.copy_(grad)


def _focal_loss(logits: Tensor, labels: Tensor, gamma: float, alpha: float) -> Tensor:
    """Compute the sigmoid focal loss of each logit (arXiv 1708.02002, equation 5).

    Args:
        logits: (n, classes).
        labels: Indices of classes, (n,). An index beyond the classes means background.
    """
    is_class = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
    logit_of_truth = torch.where(is_class, logits, -logits)
    weight = torch.where(is_class, alpha, 1 - alpha)
    # The power of 1 - p_t of the paper, whose gradient stays finite where 1 - p_t is 0.
    focus = (gamma * F.logsigmoid(-logit_of_truth)).exp()
    return -weight * focus * F.logsigmoid(logit_of_truth)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    if weight.numel():
        raise_missing("sigmoid_focal_loss with class weights")
    output.copy_(_focal_loss(input, target, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    # `weight` is empty: the forward pass raises for class weights.
    loss = functools.partial(_focal_loss, labels=target, gamma=gamma, alpha=alpha)
    write_gradients(loss, (input,), torch.ones_like(input), (grad_input,))


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    # mmcv's own code in torch, which mmcv uses on a CPU. Imported late, as it imports this module.
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    return multi_scale_deformable_attn_pytorch(
        value, spatial_shapes, sampling_locations, attention_weights
    )


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return ms_deform_attn_forward(
            value, spatial_shapes, level_start_index, locations, weights, im2col_step
        )

    inputs = (value, sampling_locations, attention_weights)
    write_gradients(attend, inputs, grad_output, (grad_value, grad_sampling_loc, grad_attn_weight))
