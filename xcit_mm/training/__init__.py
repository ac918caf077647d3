"""What a long training run needs beyond mmengine: resumable checkpoints, non-finite values caught, layer decay."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .nonfinite import NonFiniteHook, replay
from .resuming import ResumableCheckpointHook

__all__ = ["LayerDecayOptimWrapperConstructor", "NonFiniteHook", "ResumableCheckpointHook", "replay"]
