"""Extensions of mmengine for long training runs: resumable checkpoints, non-finite values, layer decay."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .nonfinite import NonFiniteHook
from .replaying import replay
from .resuming import ResumableCheckpointHook

__all__ = ["LayerDecayOptimWrapperConstructor", "NonFiniteHook", "ResumableCheckpointHook", "replay"]
