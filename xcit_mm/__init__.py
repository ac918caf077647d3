"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab. Importing it registers everything."""

from .backbone import XCiT

__version__ = "0.1.0"

__all__ = ["XCiT", "__version__"]
