"""Data types in which models predict."""

from typing import Any

import torch
from mmengine.utils import apply_to
from torch import Tensor, nn

from ..ops import is_compiled

DTYPES = dict(float32=torch.float32, float16=torch.float16, bfloat16=torch.bfloat16)


def fast_dtype(device: str) -> str:
    """Return the faster of 'bfloat16' and 'float32' for products of matrices on a device.

    On a CPU, bfloat16 is faster with AMX or AVX512_BF16, which an older torch cannot detect.
    """
    is_fast = False
    if device.startswith("cuda"):
        is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
    elif device == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        is_fast = any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return "bfloat16" if is_fast else "float32"


def prepare_for_autocast(model: nn.Module) -> None:
    """Make neck and heads return float32 under autocast, and a CPU compute with channels last.

    RoIs take the type of the feature maps, and half precision would round them to whole pixels.
    mmcv's operators on the CPU support no half precision. The parts of an RoI head, such as
    PointRend's, combine their outputs. In the channels-last layout, the convolutions of a neck are
    3 to 10 times as fast in bfloat16 on a CPU.
    """
    for path, module in model.named_modules():
        parent, _, name = path.rpartition(".")
        is_head = parent.endswith("roi_head") or hasattr(module, "predict_by_feat")
        if name == "neck" or is_head:
            module.register_forward_hook(_output_in_float32)
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in model.modules():
        # A compiled mmcv reads the map as (B, C, H, W) in memory whatever its strides are.
        if type(module).__name__.startswith("RoIAlign") and is_compiled():
            module.register_forward_pre_hook(_make_input_contiguous)


def _output_in_float32(module: nn.Module, args: tuple, output: Any) -> Any:
    return apply_to(
        output, lambda value: isinstance(value, Tensor) and value.is_floating_point(), Tensor.float
    )


def _make_input_contiguous(module: nn.Module, args: tuple) -> tuple:
    maps, *rois = args
    return maps.contiguous(), *rois
