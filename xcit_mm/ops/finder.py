"""Import of a stand-in for `mmcv._ext` where mmcv was installed without its compiled operators."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ..utils.compat import MMCV_OPERATORS, import_in_spawned_processes
from . import mmcv_ext


class _StandIn(MetaPathFinder, Loader):
    """Finds and loads `mmcv._ext` where Python's own finders have found no compiled module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, origin=mmcv_ext.__file__) if name == MMCV_OPERATORS else None

    def exec_module(self, module: ModuleType) -> None:
        for name, value in vars(mmcv_ext).items():
            vars(module).setdefault(name, value)
        import_in_spawned_processes(install)  # such as those that read images, on macOS


def install() -> None:
    """Make `mmcv.ops` importable where mmcv has no compiled operators, with those of `mmcv_ext`."""
    if not any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        sys.meta_path.append(_StandIn())


def is_compiled() -> bool:
    """Return whether mmcv has compiled operators.

    Raises:
        ImportError: If mmcv cannot be imported, or its operators were compiled for another torch.
    """
    return importlib.import_module(MMCV_OPERATORS).__file__ != mmcv_ext.__file__
