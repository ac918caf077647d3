"""The network: `xcit` is the paper, `fast` the same in less time; the classifier; models with their
weights.
"""

from .build import backbone_from_config, model_from_config, model_from_weights
from .classifier import XCiTClassifier
from .xcit import MIN_SIZE, STRIDES, XCA, Trunk, XCiT, pyramid_levels

__all__ = [
    "MIN_SIZE",
    "STRIDES",
    "XCA",
    "Trunk",
    "XCiT",
    "XCiTClassifier",
    "backbone_from_config",
    "model_from_config",
    "model_from_weights",
    "pyramid_levels",
]
