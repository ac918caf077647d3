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

from . import ops
from .models import TimmPyramid, XCiT, XCiTClassifier
from .models.build import backbone
from .rasters.loading import LoadRasterFromFile
from .training import LayerDecayOptimWrapperConstructor, NonFiniteHook, ResumableCheckpointHook
from .utils.configs import read_config
from .version import __version__
from .weights import StrictLoadHook

if TYPE_CHECKING:
    from .checks.doctor import diagnose
    from .deployment import export
    from .launch import evaluate, finetune, train
    from .prediction import Predictor, predict_many
    from .rasters.prediction import predict_raster
    from .rasters.score import score_raster

__all__ = [
    "LayerDecayOptimWrapperConstructor",
    "LoadRasterFromFile",
    "NonFiniteHook",
    "Predictor",
    "ResumableCheckpointHook",
    "StrictLoadHook",
    "TimmPyramid",
    "XCiT",
    "XCiTClassifier",
    "__version__",
    "backbone",
    "diagnose",
    "evaluate",
    "export",
    "finetune",
    "predict_many",
    "predict_raster",
    "read_config",
    "score_raster",
    "train",
]

ops.install()

# This table tells mmengine the distribution whose folder has the configs of `PACKAGE::CONFIG`. In
# place of a distribution it accepts a module, which it also finds in an editable install.
MODULE2PACKAGE.setdefault("xcit_mm", "xcit_mm.archs")


def __getattr__(name: str) -> Any:
    """Import a public name on first use: its module needs libraries that a backbone does not."""
    modules = dict(
        Predictor=".prediction",
        diagnose=".checks.doctor",
        evaluate=".launch",
        export=".deployment",
        finetune=".launch",
        predict_many=".prediction",
        predict_raster=".rasters.prediction",
        score_raster=".rasters.score",
        train=".launch",
    )
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(modules[name], __package__), name)
