"""Export of trained models to ONNX and torch.export, and the runtime without torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .export import ExportReport, ExportTarget, export_model

__all__ = ["ExportReport", "ExportTarget", "export_model"]


def __getattr__(name: str) -> Any:
    """Import the exporter when it is used: `python -m xcit_mm.deployment.run` needs no library of OpenMMLab."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import export

    return getattr(export, name)
