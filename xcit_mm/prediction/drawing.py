"""Predictions drawn over an image: instances with masks, boxes and labels, and segmentation maps with a legend."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..utils.palettes import Palette, make_palette
from .results import Instances

COLOR_BY = ("class", "instance")
# This font comes with matplotlib and has letters of many languages.
_FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


class Style(NamedTuple):
    """Appearance of drawn predictions.

    Attributes:
        alpha: Opacity of masks and segmentation maps, from 0 to 1.
        labels: Whether to draw class names: labels with scores at instances, a legend beside segmentation maps.
        color_by: Whether instances of a class share its color ('class') or each has its own ('instance').
    """

    alpha: float = 0.5
    labels: bool = True
    color_by: str = COLOR_BY[0]


def draw_instances(
    image: np.ndarray, instances: Instances, classes: Sequence[str], palette: Palette | None, style: Style
) -> np.ndarray:
    """Draw instances over a copy of an image (H, W, 3), BGR, smaller instances above larger ones."""
    drawn = image.copy()
    by_class = style.color_by == "class"
    colors = make_palette(len(classes), palette)[instances.labels] if by_class else make_palette(len(instances.labels))
    areas = (instances.boxes[:, 2:] - instances.boxes[:, :2]).prod(axis=1)
    for number in np.argsort(-areas, kind="stable"):
        color = colors[number].tolist()
        if instances.masks is not None:
            _draw_mask(drawn, instances.masks[number], color, style.alpha)
        else:
            left, top, right, bottom = instances.boxes[number].round().astype(int).tolist()
            cv2.rectangle(drawn, (left, top), (right, bottom), color, _line_width(image))
    return _draw_labels(drawn, instances, classes, colors) if style.labels else drawn


def _draw_mask(image: np.ndarray, mask: np.ndarray | dict, color: list[int], alpha: float) -> None:
    """Blend a mask with an image in place, and draw the mask's outline."""
    from pycocotools.mask import decode

    mask = decode(mask) if isinstance(mask, dict) else mask.view(np.uint8)
    left, top, width, height = cv2.boundingRect(mask)
    if not width:
        return
    crop, mask = (array[top : top + height, left : left + width] for array in (image, mask))
    blended = cv2.addWeighted(crop, 1 - alpha, np.full_like(crop, color), alpha, 0)
    cv2.copyTo(blended, mask, crop)
    outline, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))
    cv2.drawContours(image, outline, -1, color, _line_width(image), cv2.LINE_AA)


def _line_width(image: np.ndarray) -> int:
    return max(round(min(image.shape[:2]) / 300), 1)


def _font(image: np.ndarray) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_FONT, max(round(min(image.shape[:2]) / 40), 10))


def _draw_labels(image: np.ndarray, instances: Instances, classes: Sequence[str], colors: np.ndarray) -> np.ndarray:
    """Draw a label at each instance, best first, beside its box where it hides the least of other labels."""
    font = _font(image)
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    height, pad = sum(font.getmetrics()), max(font.size // 5, 1)
    taken, labels = np.zeros((0, 4)), []
    for box, score, label, color in zip(*instances[:3], colors.tolist(), strict=True):
        text = f"{classes[label]} {score:.2f}"
        places = _label_places(box.tolist(), font.getlength(text) + 2 * pad, height, canvas.size)
        shared = np.minimum(places[:, None, 2:], taken[:, 2:]) - np.maximum(places[:, None, :2], taken[:, :2])
        label_box = places[shared.clip(0).prod(axis=2).sum(axis=1).argmin()]
        taken = np.vstack([taken, label_box])
        labels.append((label_box, text, color))
    for label_box, text, color in reversed(labels):  # the best on top
        draw.rectangle(label_box.round().tolist(), fill=tuple(color))
        is_bright = np.dot(color, (0.114, 0.587, 0.299)) > 140
        draw.text((label_box[0] + pad, label_box[1]), text, font=font, fill="black" if is_bright else "white")
    return np.asarray(canvas)


def _label_places(box: list[float], width: float, height: float, size: tuple[int, int]) -> np.ndarray:
    """Return possible label boxes in an image (width, height), best first: above, below, beside and in the box."""
    left, top, right, bottom = box
    corners = [(left, top - height), (left, bottom), (right - width, top - height), (right - width, bottom)]
    corners += [(right, top), (left - width, top), (left, top)]
    corners += [((left + right - width) / 2, (top + bottom - height) / 2)]
    inside = np.array(corners).clip(0, [max(size[0] - width, 0), max(size[1] - height, 0)])
    return np.hstack([inside, inside + np.array([width, height])])


def draw_segmentation_map(
    image: np.ndarray, labels: np.ndarray, classes: Sequence[str], palette: Palette | None, style: Style
) -> np.ndarray:
    """Draw a segmentation map (H, W) over an image (H, W, 3), BGR, and a legend of the map's classes at its right."""
    colors = make_palette(len(classes), palette)
    flat = colors.take(labels, axis=0)
    drawn = cv2.addWeighted(image, 1 - style.alpha, flat, style.alpha, 0)
    borders = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones([_line_width(image) + 1] * 2, np.uint8))
    cv2.copyTo(flat, (borders > 0).view(np.uint8), drawn)
    return np.hstack([drawn, _legend(drawn, labels, classes, colors)]) if style.labels else drawn


def _legend(image: np.ndarray, labels: np.ndarray, classes: Sequence[str], colors: np.ndarray) -> np.ndarray:
    """Draw the classes of a map, largest first. The width is equal for all maps, as frames of a video must be."""
    font = _font(image)
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
        draw.text((line / 3, (len(shown) + 0.5) * line), f"and {more} more", font=font, fill="black", anchor="lm")
    return np.asarray(canvas)
