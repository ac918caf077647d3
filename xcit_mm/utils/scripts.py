"""Files that the package ships beside its modules, and the libraries that its configs need."""

import importlib.util
from pathlib import Path

from mmengine.config import Config

_PACKAGE = Path(__file__).parents[1]
# Libraries, and the extras of xcit_mm that install them.
LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `tools`: in .mim of an installed package, or beside the
    package in a clone.
    """
    folders = (_PACKAGE / ".mim" / name, _PACKAGE.parent / name)
    return next(filter(Path.is_dir, folders))


def check_library(cfg: Config, config: str) -> None:
    """Raise ValueError or ModuleNotFoundError if the library of a config is unknown or missing."""
    library = cfg.get("default_scope")
    if library not in LIBRARIES:
        fix = f"must be one of {', '.join(LIBRARIES)}"
        raise ValueError(f"default_scope={library!r} in {config}: {fix}")
    if importlib.util.find_spec(library) is None:
        fix = f"pip install xcit_mm[{LIBRARIES[library]}]"
        raise ModuleNotFoundError(f"{config} needs {library}, which is not installed: {fix}")
