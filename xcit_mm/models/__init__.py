"""The network: attention, layers, pyramid, backbone, classifier; models with their weights."""

from .attention import XCA
from .backbone import Trunk, XCiT
from .build import backbone_from_config, model_from_config, model_from_weights
from .classifier import XCiTClassifier
from .pyramid import pyramid_levels

__all__ = [
    "XCA",
    "Trunk",
    "XCiT",
    "XCiTClassifier",
    "backbone_from_config",
    "model_from_config",
    "model_from_weights",
    "pyramid_levels",
]
