"""Functions of `mmcv._ext`, the compiled operators of mmcv, with their names and arguments.

The functions write into tensors named `output`, `argmax_...` and `grad_input`. Other operators raise when called.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import focal_loss as focal
from . import nms as suppression
from . import roi_align as pooling


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises in place of another operator, since `mmcv.ops` looks up all when imported."""
    if name.startswith("__"):
        raise AttributeError(name)

    def operator(*args: object, **options: object) -> NoReturn:
        raise NotImplementedError(
            f"{name} is an operator of a compiled mmcv, this mmcv is not compiled: see docs/install.md"
        )

    return operator


@functools.cache
def torchvision_kernels() -> Any:
    """Return torchvision's kernels, or None where torchvision is missing or built for another torch."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        return None
    return torch.ops.torchvision


def _kernels(tensor: Tensor) -> Any:
    """Return torchvision's kernels for a tensor on a GPU, where each step of the torch code would launch a kernel.

    On a CPU the torch code is as fast.
    """
    return torchvision_kernels() if tensor.is_cuda else None


def _wide(tensor: Tensor) -> Tensor:
    """Convert bfloat16, which torchvision's kernels do not take, to float32."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def get_compiler_version() -> str:
    return "none (xcit_mm.ops)"


def get_compiling_cuda_version() -> str:
    return "none (xcit_mm.ops)"


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    if offset == 0 and (kernels := _kernels(boxes)):
        return kernels.nms(_wide(boxes), _wide(scores), iou_threshold)
    return suppression.nms(boxes, scores, iou_threshold, offset)


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, **options: Any) -> Tensor:
    kept, indices = suppression.soft_nms(boxes, scores, **options)
    dets[: len(kept)] = kept
    return indices


def _grid(
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int, aligned: bool
) -> tuple[tuple[int, int], float, int, bool]:
    return (aligned_height, aligned_width), spatial_scale, sampling_ratio, aligned


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, pool_mode: int, **options: Any
) -> None:
    bins, scale, sampling_ratio, aligned = _grid(**options)
    if pool_mode == 0:  # maximum
        if input.dtype == torch.bfloat16:  # too coarse for the positions in argmax_y and argmax_x
            raise NotImplementedError("RoIAlign of maxima in bfloat16: use pool_mode='avg' or float32")
        pooled = pooling.roi_max_align(input, rois, bins, scale, sampling_ratio, aligned)
        for target, values in zip((output, argmax_y, argmax_x), pooled, strict=True):
            target.copy_(values)
    elif kernels := _kernels(input):
        wide = _wide(input)
        output.copy_(kernels.roi_align(wide, rois.to(wide), scale, *bins, sampling_ratio, aligned))
    else:
        output.copy_(pooling.roi_align(input, rois, bins, scale, sampling_ratio, aligned))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    pool_mode: int,
    **options: Any,
) -> None:
    shape = tuple(grad_input.shape)
    bins, scale, sampling_ratio, aligned = _grid(**options)
    if pool_mode == 0:
        grad = pooling.roi_max_align_backward(grad_output, rois, argmax_y, argmax_x, shape)
    elif kernels := _kernels(grad_output):
        wide = _wide(grad_output)
        # The operator behind the gradient of torchvision's roi_align has no public name.
        grad = kernels._roi_align_backward(wide, rois.to(wide), scale, *bins, *shape, sampling_ratio, aligned)
    else:
        grad = pooling.roi_align_backward(grad_output, rois, shape, scale, sampling_ratio, aligned)
    grad_input.copy_(grad)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    _without_class_weights(weight)
    output.copy_(focal.sigmoid_focal_loss(input, target, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    _without_class_weights(weight)
    grad_input.copy_(focal.sigmoid_focal_loss_backward(input, target, gamma, alpha))


def ms_deform_attn_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor, im2col_step: int
) -> Tensor:
    # mmcv's own code in torch, which mmcv uses on a CPU. Imported here, since it imports this module.
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    return multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)


def ms_deform_attn_backward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    locations: Tensor,
    weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_locations: Tensor,
    grad_weights: Tensor,
    im2col_step: int,
) -> None:
    inputs = [tensor.detach().requires_grad_() for tensor in (value, locations, weights)]
    with torch.enable_grad():
        output = ms_deform_attn_forward(inputs[0], shapes, starts, inputs[1], inputs[2], im2col_step)
    targets = grad_value, grad_locations, grad_weights
    for target, grad in zip(targets, torch.autograd.grad(output, inputs, grad_output), strict=True):
        target.copy_(grad)


def _without_class_weights(weight: Tensor) -> None:
    if weight.numel():
        raise NotImplementedError(f"sigmoid_focal_loss with class weights {weight.tolist()} needs a compiled mmcv")
