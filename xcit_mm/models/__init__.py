"""The network: `xcit` is the paper, `fast` the same in less time; the classifier; built models."""

from .build import backbone
from .classifier import XCiTClassifier
from .prepare import prepare_for_inference
from .xcit import MIN_SIZE, STRIDES, XCA, Trunk, XCiT, pyramid_levels

__all__ = [
    "MIN_SIZE",
    "STRIDES",
    "XCA",
    "Trunk",
    "XCiT",
    "XCiTClassifier",
    "backbone",
    "prepare_for_inference",
    "pyramid_levels",
]
