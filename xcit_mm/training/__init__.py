"""Extensions of mmengine: exact resuming, finite values, layer decay, and bfloat16 on a CPU."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .mixed_precision import CPUAmpOptimWrapper
from .nonfinite import NonFiniteHook
from .resuming import ResumableCheckpointHook

__all__ = [
    "CPUAmpOptimWrapper",
    "LayerDecayOptimWrapperConstructor",
    "NonFiniteHook",
    "ResumableCheckpointHook",
]
