"""Predictions drawn over an image: instances by supervision's annotators, segmentation maps beside
a legend.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..utils.palettes import Palette, make_palette

# This font comes with matplotlib and has letters of many languages.
_FONT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


def _sizes(image: np.ndarray) -> tuple[int, int]:
    """Return the width of lines and the size of letters, in pixels."""
    side = min(image.shape[:2])
    return max(round(side / 300), 1), max(round(side / 40), 10)


def draw_instances(
    image: np.ndarray,
    found: Any,
    classes: Sequence[str],
    palette: Palette | None,
    alpha: float,
    labels: bool,
) -> np.ndarray:
    """Draw `supervision.Detections` over a copy of an image (H, W, 3), BGR: masks with outlines, or
    else boxes.
    """
    import supervision as sv

    bgr = make_palette(len(classes), palette)
    is_bright = bgr @ (0.114, 0.587, 0.299) > 140
    colors = sv.ColorPalette([sv.Color(*color[::-1]) for color in bgr.tolist()])
    letters = sv.ColorPalette(
        [sv.Color.BLACK if bright else sv.Color.WHITE for bright in is_bright]
    )
    (line, size), drawn = _sizes(image), image.copy()
    if found.mask is None:
        drawn = sv.BoxAnnotator(colors, line).annotate(drawn, found)
    else:
        drawn = sv.MaskAnnotator(colors, alpha).annotate(drawn, found)
        drawn = sv.PolygonAnnotator(colors, line).annotate(drawn, found)
    if labels and len(found):
        names = [
            f"{classes[n]} {score:.2f}"
            for n, score in zip(found.class_id, found.confidence, strict=True)
        ]
        style: dict[str, Any] = dict(
            font_path=_FONT, font_size=size, text_padding=max(size // 5, 1)
        )
        annotator = sv.RichLabelAnnotator(colors, text_color=letters, smart_position=True, **style)
        drawn = annotator.annotate(drawn, found, names)
    return drawn


def draw_segmentation_map(
    image: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    palette: Palette | None,
    alpha: float,
    legend: bool,
) -> np.ndarray:
    """Draw a segmentation map (H, W) over an image (H, W, 3), BGR, and a legend of the map's
    classes at its right.
    """
    colors = make_palette(len(classes), palette)
    flat = colors.take(labels, axis=0)
    drawn = cv2.addWeighted(image, 1 - alpha, flat, alpha, 0)
    return np.hstack([drawn, _draw_legend(drawn, labels, classes, colors)]) if legend else drawn


def _draw_legend(
    image: np.ndarray, labels: np.ndarray, classes: Sequence[str], colors: np.ndarray
) -> np.ndarray:
    """Draw the classes of a map, largest first. The width is equal for all maps, as frames of a
    video must be.
    """
    font = ImageFont.truetype(_FONT, _sizes(image)[1])
    line = round(1.5 * font.size)
    width = round(max(font.getlength(name) for name in classes) + 2 * line)
    canvas = Image.new("RGB", (width, image.shape[0]), "white")
    draw = ImageDraw.Draw(canvas)
    areas = np.bincount(labels.ravel(), minlength=len(classes))
    present = [number for number in np.argsort(-areas, kind="stable") if areas[number]]
    room = max(image.shape[0] // line, 1)
    shown = present if len(present) <= room else present[: room - 1]
    for row, number in enumerate(shown):
        middle = row * line + line / 2
        square = (line / 3, middle - font.size / 2, line / 3 + font.size, middle + font.size / 2)
        draw.rectangle(square, fill=tuple(colors[number].tolist()), outline=(120, 120, 120))
        draw.text((1.4 * line, middle), classes[number], font=font, fill="black", anchor="lm")
    if more := len(present) - len(shown):
        draw.text(
            (line / 3, (len(shown) + 0.5) * line),
            f"and {more} more",
            font=font,
            fill="black",
            anchor="lm",
        )
    return np.asarray(canvas)
