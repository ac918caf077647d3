"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab. Importing it registers everything."""

from .backbone import XCiT
from .checkpoint import StrictLoadHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .nonfinite import NonFiniteHook
from .resuming import ResumableCheckpointHook

__version__ = "0.1.0"

__all__ = [
    "LayerDecayOptimWrapperConstructor",
    "NonFiniteHook",
    "ResumableCheckpointHook",
    "StrictLoadHook",
    "XCiT",
    "__version__",
]
