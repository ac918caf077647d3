"""XCiT (Cross-Covariance Image Transformers) for OpenMMLab.

`import xcit_mm` registers all classes in mmengine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import mmcv  # noqa: F401
    from mmengine.config.utils import MODULE2PACKAGE
except ModuleNotFoundError as error:
    # They are not requirements, which would install one stack over the other.
    if error.name not in ("mmcv", "mmengine"):
        raise
    fix = f"pip install mmengine mmcv-lite, or the forks' onedl-{error.name}"
    raise ModuleNotFoundError(f"xcit_mm needs {error.name}: {fix}") from None
from mmengine.registry import MODELS

from . import ops
from .models import XCiT, XCiTClassifier
from .models.build import backbone
from .rasters.loading import LoadRasterFromFile
from .training import LayerDecayOptimWrapperConstructor, NonFiniteHook, ResumableCheckpointHook
from .utils.compat import keep_scope_of_bases
from .version import __version__
from .weights import StrictLoadHook

if TYPE_CHECKING:
    from .prediction import Predictor
    from .rasters.prediction import predict_raster
    from .rasters.score import score_raster

__all__ = [
    "LayerDecayOptimWrapperConstructor",
    "LoadRasterFromFile",
    "NonFiniteHook",
    "Predictor",
    "ResumableCheckpointHook",
    "StrictLoadHook",
    "XCiT",
    "XCiTClassifier",
    "__version__",
    "backbone",
    "predict_raster",
    "score_raster",
]

ops.install()

# mmengine finds `xcit_mm::CONFIG` only if the package is in this table, by the name of a
# distribution. The folder of an editable install is unknown to it, but a module's name leads to the
# module's folder.
MODULE2PACKAGE.setdefault("xcit_mm", "xcit_mm.archs")
# The distribution is mmsegmentation in one stack and onedl-mmsegmentation in the other. The module
# has one name.
MODULE2PACKAGE["mmseg"] = "mmseg"
keep_scope_of_bases()


def __getattr__(name: str) -> Any:
    """Return a name of a module that needs mmcv, and is imported only on use."""
    modules = dict(
        Predictor=".prediction",
        predict_raster=".rasters.prediction",
        score_raster=".rasters.score",
    )
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(modules[name], __package__), name)


def _register_on_use(name: str, module: str) -> None:
    """Register a model whose base class is in mmdet or mmseg, imported only when it is built."""

    def build(**kwargs: Any) -> Any:
        return getattr(import_module(module, __package__), name)(**kwargs)

    MODELS.register_module(name=name, module=build)


_register_on_use("LinearHead", ".models.linear_head")
