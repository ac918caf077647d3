"""Operators of a compiled mmcv, in torch: non-maximum suppression, RoIAlign, focal loss."""

from .finder import has_gpu_kernels, install, is_compiled

__all__ = ["has_gpu_kernels", "install", "is_compiled"]
