"""Predictions drawn over an image: instances, and segmentation maps beside a legend."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import matplotlib
import numpy as np
import supervision as sv
from PIL import Image, ImageDraw, ImageFont

# It comes with matplotlib, and has letters of many European languages.
FONT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


class Style(NamedTuple):
    """How a prediction is drawn.

    Attributes:
        names: Name of each class.
        colors: Color of each class, BGR, (n, 3), uint8.
        alpha: Opacity of masks and maps.
        font: Path of the font of the names, or None to draw no names.
    """

    names: Sequence[str]
    colors: np.ndarray
    alpha: float
    font: str | None


def draw_instances(image: np.ndarray, instances: sv.Detections, style: Style) -> np.ndarray:
    """Draw objects over a copy of an image (H, W, 3), BGR: masks with outlines, or else boxes."""
    colors = sv.ColorPalette([sv.Color(*bgr[::-1]) for bgr in style.colors.tolist()])
    line = max(round(min(image.shape[:2]) / 300), 1)
    drawn = image.copy()
    if instances.mask is None:
        drawn = sv.BoxAnnotator(colors, line).annotate(drawn, instances)
    else:
        drawn = sv.MaskAnnotator(colors, style.alpha).annotate(drawn, instances)
        drawn = sv.PolygonAnnotator(colors, line).annotate(drawn, instances)
    if style.font is None:
        return drawn
    texts = np.array(style.names)[instances.class_id].tolist()
    if instances.confidence is not None:
        scores = zip(texts, instances.confidence, strict=True)
        texts = [f"{text} {score:.2f}" for text, score in scores]
    is_bright = style.colors @ (0.114, 0.587, 0.299) > 140
    letters = [sv.Color.BLACK if bright else sv.Color.WHITE for bright in is_bright]
    annotator = sv.RichLabelAnnotator(
        colors,
        text_color=sv.ColorPalette(letters),
        font_path=style.font,
        font_size=_font_size(image),
        smart_position=True,
    )
    return annotator.annotate(drawn, instances, texts)


def draw_segmentation_map(image: np.ndarray, segmentation: np.ndarray, style: Style) -> np.ndarray:
    """Draw a map (H, W) over an image (H, W, 3), BGR, and beside it the names of its classes, the
    largest first, as far as the image's height goes.
    """
    colors = style.colors
    drawn = cv2.addWeighted(image, 1 - style.alpha, colors[segmentation], style.alpha, 0)
    if style.font is None:
        return drawn
    size = _font_size(image)
    font = ImageFont.truetype(style.font, size)
    width = max(map(font.getlength, style.names))  # whatever classes are present
    legend = Image.new("RGB", (round(width + 3 * size), len(image)), "white")
    draw = ImageDraw.Draw(legend)
    present, areas = np.unique(segmentation, return_counts=True)
    for row, number in enumerate(present[np.argsort(-areas, kind="stable")]):
        top = round((1.5 * row + 0.25) * size)
        square = (size / 2, top, 1.5 * size, top + size)
        draw.rectangle(square, fill=tuple(colors[number].tolist()), outline="gray")
        draw.text((2 * size, top + size / 2), style.names[number], "black", font, anchor="lm")
    return np.hstack([drawn, np.asarray(legend)])


def _font_size(image: np.ndarray) -> int:
    return max(round(min(image.shape[:2]) / 40), 10)
