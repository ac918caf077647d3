"""Export of trained models to ONNX, and `run.py`, which runs them without torch."""

from .export import export_model

__all__ = ["export_model"]
