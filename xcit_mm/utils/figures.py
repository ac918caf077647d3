"""Write matplotlib's figures."""

from pathlib import Path
from typing import TYPE_CHECKING

from .atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".jpg", ".jpeg", ".pdf", ".svg")


def check_figure(path: Path) -> None:
    """Raise ValueError if the suffix is not a format of figures."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out {path}: name a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure atomically, in the format of the path's suffix."""
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
