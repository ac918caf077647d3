"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab. Importing it registers everything."""

from mmengine.config.utils import MODULE2PACKAGE

from .backbone import XCiT
from .checkpoint import StrictLoadHook
from .classifier import XCiTClassifier
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
    "XCiTClassifier",
    "__version__",
]

# mmengine looks up `xcit_mm::CONFIG` only in packages of this table, and there by the name of a distribution, whose
# place is not known if its install is editable: a module's name leads to the module's folder.
MODULE2PACKAGE.setdefault("xcit_mm", "xcit_mm.archs")
