"""The network: `xcit` is the paper, `fast` the same in less time; the classifier; built models."""

from .build import backbone
from .classifier import XCiTClassifier
from .xcit import MIN_SIZE, STRIDES, XCA, Trunk, XCiT, pyramid_levels

__all__ = [
    "MIN_SIZE",
    "STRIDES",
    "XCA",
    "Trunk",
    "XCiT",
    "XCiTClassifier",
    "backbone",
    "pyramid_levels",
]
