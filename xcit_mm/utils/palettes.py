"""Colors of classes."""

from collections.abc import Sequence
from colorsys import hsv_to_rgb

import numpy as np

# RGB. Some configs of the libraries give the name of a palette instead.
Palette = Sequence[Sequence[int]] | str


def make_palette(count: int, palette: Palette | None = None) -> np.ndarray:
    """Return colors (count, 3) in BGR, from a palette in RGB.

    If the palette has too few colors, or is a name, as in some configs, distinct ones are made.
    """
    if palette is not None and not isinstance(palette, str) and len(palette) >= count:
        return np.array(palette, np.uint8).reshape(-1, 3)[:count, ::-1].copy()
    # The golden ratio keeps the hues of neighbours apart for any count.
    hsv = [
        (number * 0.618034 % 1, 0.6 + 0.13 * (number % 4), 1 - 0.16 * (number % 3))
        for number in range(count)
    ]
    rgb = np.array([hsv_to_rgb(*color) for color in hsv]).reshape(-1, 3)
    return (255 * rgb[:, ::-1]).round().astype(np.uint8)
