"""mmcv's deformable convolutions by torchvision's operator, with the arguments that mmcv gives.

The functions write into the tensors named `output` and `grad_...`, except that `grad_output` is an
input. `columns` and `ones` are work space of the compiled operators, which is unused here.
"""

import functools
from collections.abc import Callable

from torch import Tensor

from .kernels import raise_missing, torchvision_kernels, write_gradients


def _make_deform_conv(output: Tensor, options: dict[str, int]) -> Callable[..., Tensor]:
    """Return torchvision's deformable convolution with the options of a call of mmcv's.

    The returned function takes input, offset, weight and, if modulated, mask and bias, on all
    devices, in all types that torchvision takes: not in bfloat16 on a CPU. Its result has the
    height and width of `output`.

    Raises:
        NotImplementedError: If torchvision cannot be imported.
    """
    kernels = torchvision_kernels() or raise_missing("deform_conv")
    if "dH" in options:
        names = ["dH", "dW", "padH", "padW", "dilationH", "dilationW"]
    else:  # a modulated convolution
        names = ["stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"]
    geometry = [options[name] for name in (*names, "group", "deformable_group")]
    size = output.shape[2:]

    def crop(offset: Tensor) -> Tensor:
        """Crop offsets, or a mask, to the values that mmcv reads: DyHead's offsets are larger."""
        channels = offset.shape[1]
        return offset.flatten(1)[:, : channels * size.numel()].unflatten(1, (channels, *size))

    def convolve(
        input: Tensor,
        offset: Tensor,
        weight: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        is_modulated = mask is not None
        mask = weight.new_zeros(len(input), 1) if mask is None else crop(mask)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        tensors = (input, weight, crop(offset), mask, bias)
        return kernels.deform_conv2d(*tensors, *geometry, is_modulated)

    return convolve


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    **options: int,
) -> None:
    output.copy_(_make_deform_conv(output, options)(input, offset, weight))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **options: int,
) -> None:
    convolve = functools.partial(_make_deform_conv(grad_output, options), weight=weight)
    write_gradients(convolve, (input, offset), grad_output, (grad_input, grad_offset))


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    **options: int,
) -> None:
    convolve = functools.partial(_make_deform_conv(grad_output, options), input, offset)
    # The result is linear in the weight, so its gradient is the same at any weight.
    write_gradients(convolve, (grad_weight,), grad_output, (grad_weight,))


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    *,
    with_bias: bool,
    **options: int,
) -> None:
    convolve = _make_deform_conv(output, options)
    output.copy_(convolve(input, offset, weight, mask, bias if with_bias else None))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    *,
    with_bias: bool,
    **options: int,
) -> None:
    inputs = [input, offset, weight, mask]
    targets = [grad_input, grad_offset, grad_weight, grad_mask]
    if with_bias:
        inputs.append(bias)
        targets.append(grad_bias)
    write_gradients(_make_deform_conv(grad_output, options), inputs, grad_output, targets)
