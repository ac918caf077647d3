"""Fonts that have the letters of class names, of any script."""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.ft2font import FT2Font

# This font comes with matplotlib and has letters of many European languages.
DEFAULT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


class ClassLabel(NamedTuple):
    """What is drawn for a class: its name, or its number if no font has the letters."""

    text: str
    font: str


@cache
def class_labels(names: tuple[str, ...], font: str | None = None) -> tuple[ClassLabel, ...]:
    """Choose text and font of each class: its name, or its number if no font has the letters.

    Args:
        font: Path of a font. Default: that of matplotlib, or else a font of the system that has
            the letters.

    Raises:
        ValueError: If the file is not a font.
    """
    labels = []
    for number, name in enumerate(names):
        paths = [font] if font else [DEFAULT, *_system_fonts(name)]
        path = next((path for path in paths if set(map(ord, name)) <= _code_points(path)), None)
        labels.append(ClassLabel(name, path) if path else ClassLabel(str(number), DEFAULT))
    return tuple(labels)


@cache
def _code_points(font: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(font).get_charmap())
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{font} is not a font: {error}") from None


def _system_fonts(name: str) -> Sequence[str]:
    """List the fonts of fontconfig that have the letters of a name, regular ones first."""
    if shutil.which("fc-list") is None or name.isascii():
        return []
    letters = " ".join(f"{ord(letter):x}" for letter in sorted(set(name)))
    command = ["fc-list", f":charset={letters}", "--format=%{file}\n"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    files = {path for path in listed.splitlines() if path.endswith((".ttf", ".otf", ".ttc"))}
    return sorted(files, key=lambda path: ("Regular" not in path, path))
