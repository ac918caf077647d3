"""Files that the package ships beside its modules, and scripts that run as part of a command."""

import importlib.util
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parents[1]


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `tools`: in .mim of an installed package, or beside the
    package in a clone.
    """
    return next(
        path for path in (_PACKAGE / ".mim" / name, _PACKAGE.parent / name) if path.is_dir()
    )


def load_script(script: Path) -> ModuleType:
    """Import a script under a name of its own.

    Spawned workers import `__main__` again, which must stay the command of this package: it imports
    xcit_mm before mmcv.ops.
    """
    spec = importlib.util.spec_from_file_location(f"{script.stem}_script", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
