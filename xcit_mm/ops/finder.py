"""Puts a stand-in for `mmcv._ext` in place where mmcv was installed without its compiled operators."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import mmcv_ext

__all__ = ["fast_on_gpu", "install", "is_compiled"]

NAME = "mmcv._ext"


class _StandIn(MetaPathFinder, Loader):
    """Finds and loads `mmcv._ext`. As the last of `sys.meta_path` it is asked only where Python finds no other."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, origin=mmcv_ext.__file__) if name == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({name: value for name, value in vars(mmcv_ext).items() if name not in vars(module)})


def install() -> None:
    """Make `mmcv.ops` importable where mmcv has no compiled operators; those of `mmcv_ext` can be used.

    Warns if it comes too late: mmseg does without operators that it cannot import, until it needs them.
    """
    if any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        return
    sys.meta_path.append(_StandIn())
    late = [name for name in ("mmdet", "mmseg") if f"{name}.models" in sys.modules]
    if late and "mmcv.ops" not in sys.modules:
        warnings.warn(
            f"{' and '.join(late)} was imported before xcit_mm, without operators: restart, import xcit_mm first",
            stacklevel=3,
        )


def is_compiled() -> bool:
    """Whether mmcv has compiled operators.

    Raises:
        ImportError: If mmcv cannot be imported, or its operators were compiled for another torch.
    """
    return importlib.import_module(NAME).__file__ != mmcv_ext.__file__


def fast_on_gpu() -> bool:
    """Whether torchvision, whose kernels the stand-in calls on a GPU, can be imported."""
    return mmcv_ext.torchvision_kernels() is not None
