"""Operators that a compiled mmcv brings, in torch: non-maximum suppression, RoIAlign, focal loss."""

from .finder import fast_on_gpu, install, is_compiled

__all__ = ["fast_on_gpu", "install", "is_compiled"]
