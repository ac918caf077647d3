"""Predictions drawn over an image: instances, and segmentation maps beside a legend."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import supervision as sv
from PIL import Image, ImageDraw, ImageFont

MANY = 300
"""Number of objects up to which names are moved apart: the time grows with its square."""
# It comes with matplotlib, and has letters of many European languages.
FONT = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
ALPHA = 0.5  # opacity of masks and maps


def check_font(path: str) -> None:
    """Raise OSError unless a font can be read. supervision would draw other letters."""
    try:
        ImageFont.truetype(path)
    except OSError as error:
        raise OSError(f"{path}: {error}: give a TrueType or OpenType file") from None


def as_photo(image: np.ndarray) -> np.ndarray:
    """Return an image of any bands and type as a photo: (H, W, 3), BGR, uint8.

    The first three bands are shown as red, green and blue, or else the first one as grey. Values of
    other types than uint8 are stretched: their 2nd percentile becomes 0, the 98th 255.

    Args:
        image: (H, W, bands), or (H, W). With three bands of uint8 it is BGR, as OpenCV reads it.
    """
    bands = image.reshape(*image.shape[:2], -1)
    if bands.dtype == np.uint8 and bands.shape[2] == 3:
        return image
    shown = bands[..., 2::-1] if bands.shape[2] >= 3 else bands[..., [0, 0, 0]]
    if shown.dtype != np.uint8:
        low, high = np.quantile(shown, (0.02, 0.98))
        shown = np.interp(shown, (low, max(high, low + 1e-6)), (0, 255)).astype(np.uint8)
    return np.ascontiguousarray(shown)


def draw_instances(
    image: np.ndarray, instances: sv.Detections, names: Sequence[str], colors: np.ndarray, font: str
) -> np.ndarray:
    """Draw objects with their names and scores over a copy of an image (H, W, 3), BGR.

    Masks are drawn with outlines. Without masks, boxes are drawn. The names of more than `MANY`
    objects may cover each other.

    Args:
        names: Name of each class.
        colors: Color of each class, BGR, (n, 3), uint8.
        font: Path of the font of the names.
    """
    palette = sv.ColorPalette([sv.Color(*bgr[::-1]) for bgr in colors.tolist()])
    line = max(round(min(image.shape[:2]) / 300), 1)
    drawn = image.copy()
    if instances.mask is None:
        drawn = sv.BoxAnnotator(palette, line).annotate(drawn, instances)
    else:
        drawn = sv.MaskAnnotator(palette, ALPHA).annotate(drawn, instances)
        drawn = sv.PolygonAnnotator(palette, line).annotate(drawn, instances)
    texts = np.array(names)[instances.class_id].tolist()
    if instances.confidence is not None:
        scores = zip(texts, instances.confidence, strict=True)
        texts = [f"{text} {score:.2f}" for text, score in scores]
    is_bright = colors @ (0.114, 0.587, 0.299) > 140
    letters = [sv.Color.BLACK if bright else sv.Color.WHITE for bright in is_bright]
    annotator = sv.RichLabelAnnotator(
        palette,
        text_color=sv.ColorPalette(letters),
        font_path=font,
        font_size=_font_size(image),
        smart_position=len(texts) <= MANY,
    )
    return annotator.annotate(drawn, instances, texts)


def draw_segmentation_map(
    image: np.ndarray, segmentation: np.ndarray, names: Sequence[str], colors: np.ndarray, font: str
) -> np.ndarray:
    """Draw a map (H, W) over an image (H, W, 3), BGR, with a legend at its right.

    The legend names the classes in the map, the largest first, as far as the image's height goes.
    The arguments are those of `draw_instances`.
    """
    drawn = cv2.addWeighted(image, 1 - ALPHA, colors[segmentation], ALPHA, 0)
    size = _font_size(image)
    typeface = ImageFont.truetype(font, size)
    width = max(map(typeface.getlength, names))  # whatever classes are present
    legend = Image.new("RGB", (round(width + 3 * size), len(image)), "white")
    draw = ImageDraw.Draw(legend)
    present, areas = np.unique(segmentation, return_counts=True)
    for row, number in enumerate(present[np.argsort(-areas, kind="stable")]):
        top = round((1.5 * row + 0.25) * size)
        square = (size / 2, top, 1.5 * size, top + size)
        draw.rectangle(square, fill=tuple(colors[number].tolist()), outline="gray")
        draw.text((2 * size, top + size / 2), names[number], "black", typeface, anchor="lm")
    return np.hstack([drawn, np.asarray(legend)])


def _font_size(image: np.ndarray) -> int:
    return max(round(min(image.shape[:2]) / 40), 10)
