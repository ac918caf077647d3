"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab. Importing it registers everything."""

from .backbone import XCiT
from .checkpoint import StrictLoadHook

__version__ = "0.1.0"

__all__ = ["StrictLoadHook", "XCiT", "__version__"]
