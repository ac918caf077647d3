"""Extensions of mmengine for long training runs: resumable checkpoints, non-finite values, layer decay."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .nonfinite import NonFiniteHook
from .resuming import ResumableCheckpointHook
from .snapshots import replay

__all__ = ["LayerDecayOptimWrapperConstructor", "NonFiniteHook", "ResumableCheckpointHook", "replay"]
