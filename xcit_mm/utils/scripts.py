"""Files that the package ships beside its modules, and the scripts of the libraries."""

import importlib.util
from pathlib import Path

from mmengine.config import Config

_PACKAGE = Path(__file__).parents[1]
# Libraries, and the extras of xcit_mm that install them.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `tools`: in .mim of an installed package, or beside the
    package in a clone.
    """
    folders = (_PACKAGE / ".mim" / name, _PACKAGE.parent / name)
    return next(filter(Path.is_dir, folders))


def list_scripts() -> dict[str, Path]:
    """Return the scripts of the installed libraries by names such as mmdet/test.py."""
    scripts = {}
    for library in _LIBRARIES:
        package = importlib.util.find_spec(library)
        if package is not None and package.origin is not None:
            tools = Path(package.origin).parent / ".mim" / "tools"
            for path in sorted(tools.rglob("*.py")):
                scripts[f"{library}/{path.relative_to(tools)}"] = path
    return scripts


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """Return `tools/TOOL.py` of the library of a config. Raise ValueError or ImportError if there
    is none.
    """
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        fix = f"must be one of {', '.join(_LIBRARIES)}"
        raise ValueError(f"default_scope={library!r} in {config}: {fix}")
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        fix = f"pip install xcit_mm[{_LIBRARIES[library]}]"
        raise ModuleNotFoundError(f"{config} needs {library}, which is not installed: {fix}")
    return Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"
