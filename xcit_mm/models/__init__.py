"""Networks.

`xcit` is the paper. `covariance` and `matmul` are the same in less time, and `large` is the same
for images of any size. `large_training` and `large_losses` compute the gradients of large images.
"""

from mmengine.registry import MODELS, Registry

from .base import MIN_SIZE, Backbone
from .build import backbone
from .classifier import XCiTClassifier
from .prepare import prepare_for_inference
from .timm_pyramid import TimmPyramid
from .xcit import STRIDES, XCA, Pyramid, Trunk, XCiT, pyramid_levels

# Classes that need mmseg. mmengine imports them when a config names one, as "xcit_mm.NAME".
LAZY_MODELS = Registry(
    "model", parent=MODELS, scope="xcit_mm", locations=["xcit_mm.models.segmentor"]
)

__all__ = [
    "MIN_SIZE",
    "STRIDES",
    "XCA",
    "Backbone",
    "Pyramid",
    "TimmPyramid",
    "Trunk",
    "XCiT",
    "XCiTClassifier",
    "backbone",
    "prepare_for_inference",
    "pyramid_levels",
]
