"""Operators of a compiled mmcv, in torch: non-maximum suppression, RoIAlign, focal loss."""

from .finder import install, is_compiled

__all__ = ["install", "is_compiled"]
