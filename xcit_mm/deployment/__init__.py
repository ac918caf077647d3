"""Models that leave: export to ONNX and torch.export, the traceable forms it needs, the runner without torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .export import Exported, export_model

__all__ = ["Exported", "export_model"]


def __getattr__(name: str) -> Any:
    """The exporter is imported only where it is used: `python -m xcit_mm.deployment.run` needs no mm library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import export

    return getattr(export, name)
