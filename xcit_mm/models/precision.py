"""Data types in which models predict."""

from typing import Any

import torch
from mmengine.utils import apply_to
from torch import Tensor, nn

from ..ops import is_compiled

DTYPES = dict(float32=torch.float32, float16=torch.float16, bfloat16=torch.bfloat16)


def fast_dtype(device: str) -> str:
    """Return 'bfloat16' if a device multiplies matrices faster in it than in float32, else
    'float32'.

    Among CPUs, those with AMX or AVX512_BF16 do. An older torch cannot tell.
    """
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    found: dict[str, bool] = (
        getattr(torch.cpu, "get_capabilities", dict)() if device == "cpu" else {}
    )
    return "bfloat16" if found.get("amx_bf16") or found.get("avx512_bf16") else "float32"


def prepare_for_autocast(model: nn.Module) -> None:
    """Make the neck and the heads return float32 under autocast, and a CPU compute in the
    channels-last layout.

    RoIs take the type of the feature maps, and half precision would round them to whole pixels.
    mmcv's operators on the CPU support no half precision. The parts of an RoI head, such as
    PointRend's, combine their outputs. In the channels-last layout, the convolutions of a neck are
    3 to 10 times as fast in bfloat16 on a CPU.
    """

    def convert(module: nn.Module, args: tuple, output: Any) -> Any:
        return apply_to(
            output, lambda x: isinstance(x, Tensor) and x.is_floating_point(), Tensor.float
        )

    roi_head = getattr(model, "roi_head", None)
    parts = [getattr(model, "neck", None), *(roi_head.children() if roi_head else ())]
    for module in model.modules():
        if module in parts or hasattr(module, "predict_by_feat"):
            module.register_forward_hook(convert)
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in model.modules():
        # A compiled mmcv reads the map as (B, C, H, W) in memory whatever its strides are.
        if type(module).__name__.startswith("RoIAlign") and is_compiled():
            module.register_forward_pre_hook(lambda module, args: (args[0].contiguous(), *args[1:]))
