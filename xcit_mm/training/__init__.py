"""Extensions of mmengine: resumable checkpoints, non-finite values, layer decay, mixed precision on a CPU."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .mixed_precision import CPUAmpOptimWrapper
from .nonfinite import NonFiniteHook
from .resuming import ResumableCheckpointHook
from .snapshots import replay

__all__ = [
    "CPUAmpOptimWrapper",
    "LayerDecayOptimWrapperConstructor",
    "NonFiniteHook",
    "ResumableCheckpointHook",
    "replay",
]
