"""The font of class names in drawings."""

from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.ft2font import FT2Font

# This font comes with matplotlib and has letters of many European languages.
DEFAULT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@cache
def class_labels(names: tuple[str, ...], font: str) -> tuple[str, ...]:
    """Return what is drawn for each class: its name, or its number if the font lacks a letter.

    Args:
        font: Path of the font.

    Raises:
        ValueError: If the file is not a font.
    """
    try:
        letters = set(FT2Font(font).get_charmap())
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{font} is not a font: {error}") from None
    is_shown = [letters.issuperset(map(ord, name)) for name in names]
    return tuple(name if is_shown[number] else str(number) for number, name in enumerate(names))
