"""Files that the package ships beside its modules."""

from pathlib import Path


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `tools`: in .mim of an installed package, or beside the
    package in a clone.
    """
    package = Path(__file__).parents[1]
    folders = (package / ".mim" / name, package.parent / name)
    return next(filter(Path.is_dir, folders))
