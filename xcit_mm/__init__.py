"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab. Importing it registers everything."""

from typing import Any

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS

from .models import XCiT, XCiTClassifier
from .training import LayerDecayOptimWrapperConstructor, NonFiniteHook, ResumableCheckpointHook
from .version import __version__
from .weights import StrictLoadHook

__all__ = [
    "LayerDecayOptimWrapperConstructor",
    "NonFiniteHook",
    "ResumableCheckpointHook",
    "StrictLoadHook",
    "XCiT",
    "XCiTClassifier",
    "__version__",
]

# mmengine looks up `xcit_mm::CONFIG` only in packages of this table, and there by the name of a distribution, whose
# place is not known if its install is editable: a module's name leads to the module's folder.
MODULE2PACKAGE.setdefault("xcit_mm", "xcit_mm.archs")


@MODELS.register_module(name="MaskTTAModel")
def _mask_tta_model(**kwargs: Any) -> Any:
    """Build a `MaskTTAModel`. Its class derives from one of mmdet, which is imported only where it is used."""
    from .prediction.tta import MaskTTAModel

    return MaskTTAModel(**kwargs)
