"""Predictions drawn over an image: instances, and segmentation maps beside a legend."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import supervision as sv
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from ..utils.palettes import Palette, make_palette

# This font comes with matplotlib and has letters of many European languages.
FONT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@cache
def class_labels(names: tuple[str, ...], font: str) -> list[str]:
    """Return what is drawn for each class: its name, or its number if the font lacks a letter.
    A file that is not a font is a ValueError.
    """
    try:
        letters = set(FT2Font(font).get_charmap())
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{font} is not a font: {error}") from None
    labels = []
    for number, name in enumerate(names):
        labels.append(name if letters.issuperset(map(ord, name)) else str(number))
    return labels


def _font_size(image: np.ndarray) -> int:
    return max(round(min(image.shape[:2]) / 40), 10)


def draw_instances(
    image: np.ndarray,
    instances: sv.Detections,
    labels: Sequence[str],
    font: str,
    palette: Palette | None,
    alpha: float,
    with_labels: bool,
) -> np.ndarray:
    """Draw objects over a copy of an image (H, W, 3), BGR: masks with outlines, or else boxes.

    `labels` are the texts of the classes, and `font` is the path of their font.
    """
    bgr = make_palette(len(labels), palette).tolist()
    colors = sv.ColorPalette([sv.Color(*color[::-1]) for color in bgr])
    line = max(round(min(image.shape[:2]) / 300), 1)
    drawn = image.copy()
    if instances.mask is None:
        drawn = sv.BoxAnnotator(colors, line).annotate(drawn, instances)
    else:
        drawn = sv.MaskAnnotator(colors, alpha).annotate(drawn, instances)
        drawn = sv.PolygonAnnotator(colors, line).annotate(drawn, instances)
    if not with_labels:
        return drawn
    is_bright = np.array(bgr) @ (0.114, 0.587, 0.299) > 140
    letters = [sv.Color.BLACK if bright else sv.Color.WHITE for bright in is_bright]
    size = _font_size(image)
    texts = np.array(labels)[instances.class_id].tolist()
    if instances.confidence is not None:
        scores = zip(texts, instances.confidence, strict=True)
        texts = [f"{text} {score:.2f}" for text, score in scores]
    annotator = sv.RichLabelAnnotator(
        colors,
        text_color=sv.ColorPalette(letters),
        font_path=font,
        font_size=size,
        text_padding=size // 5,
        smart_position=True,
    )
    return annotator.annotate(drawn, instances, texts)


def draw_segmentation_map(
    image: np.ndarray,
    segmentation: np.ndarray,
    labels: Sequence[str],
    font: str,
    palette: Palette | None,
    alpha: float,
    with_legend: bool,
) -> np.ndarray:
    """Draw a map (H, W) over an image (H, W, 3), BGR, and a legend of its classes at the right."""
    colors = make_palette(len(labels), palette)
    flat = colors.take(segmentation, axis=0)
    drawn = cv2.addWeighted(image, 1 - alpha, flat, alpha, 0)
    if not with_legend:
        return drawn
    return np.hstack([drawn, _draw_legend(drawn, segmentation, labels, font, colors)])


def _draw_legend(
    image: np.ndarray,
    segmentation: np.ndarray,
    labels: Sequence[str],
    font: str,
    colors: np.ndarray,
) -> np.ndarray:
    """Draw the classes of a map, largest first. All names decide the width, whatever is present."""
    size = _font_size(image)
    line = round(1.5 * size)
    sized_font = ImageFont.truetype(font, size)
    limit = max(image.shape[0] // line, 1)
    more = [f"and {len(labels)} more"] if len(labels) > limit else []
    width = max(map(sized_font.getlength, [*labels, *more]))
    canvas = Image.new("RGB", (round(width + 2 * line), image.shape[0]), "white")
    draw = ImageDraw.Draw(canvas)
    areas = np.bincount(segmentation.ravel(), minlength=len(labels))
    present = [number for number in np.argsort(-areas, kind="stable") if areas[number]]
    rows = [(labels[number], tuple(colors[number].tolist())) for number in present]
    if len(rows) > limit:
        rows[limit - 1 :] = [(f"and {len(rows) - limit + 1} more", (255, 255, 255))]
    for row, (label, color) in enumerate(rows):
        middle = (row + 0.5) * line
        square = (line / 3, middle - size / 2, line / 3 + size, middle + size / 2)
        draw.rectangle(square, fill=color, outline=(120, 120, 120))
        draw.text((1.4 * line, middle), label, font=sized_font, fill="black", anchor="lm")
    return np.asarray(canvas)
