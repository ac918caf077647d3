"""Mixed precision on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from ..models.precision import prepare_for_autocast


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Trains in bfloat16 on a CPU, where mmengine's AmpOptimWrapper refuses to.

    Weights, losses, and the outputs of neck and heads stay in float32. bfloat16 has the range of
    float32, so losses are not scaled, and `loss_scale` is ignored. `dtype` may be None or
    bfloat16. All other arguments are those of OptimWrapper.
    """

    def __init__(
        self, loss_scale: Any = None, dtype: str | torch.dtype | None = None, **kwargs: Any
    ) -> None:
        if dtype not in (None, "bfloat16", torch.bfloat16):
            fix = "a CPU has mixed precision in bfloat16 only, so leave dtype out"
            raise ValueError(f"optim_wrapper.{dtype=}: {fix}")
        super().__init__(**kwargs)
        self._prepared_model: nn.Module | None = None

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        if model is not self._prepared_model:
            prepare_for_autocast(model)
            self._prepared_model = model
        with super().optim_context(model), torch.autocast("cpu", torch.bfloat16):
            yield
