"""Extensions of mmengine: exact resume, finite values, layer decay, mixed precision on a CPU."""

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
