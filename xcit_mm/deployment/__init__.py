"""Models that leave: export to ONNX and torch.export, and the traceable forms it needs."""

from .export import Exported, export_model

__all__ = ["Exported", "export_model"]
