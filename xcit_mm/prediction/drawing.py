"""Predictions over a photo: instances with masks, boxes and labels, and segmentation maps with a legend."""

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from pathlib import Path
from typing import NamedTuple

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .results import Instances

__all__ = ["COLOR_BY", "Style", "colours", "draw_instances", "draw_segmentation_map"]

# RGB; some libraries' configs name one instead.
Palette = Sequence[Sequence[int]] | str
COLOR_BY = ("class", "instance")
# It comes with matplotlib and has letters of many languages.
_FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


class Style(NamedTuple):
    """How predictions are drawn.

    Attributes:
        alpha: Opacity of masks and segmentation maps, from 0 to 1.
        labels: Whether classes are named: instances by labels with scores, segmentation maps by a legend.
        color_by: Whether instances of a class share its colour ('class') or each has its own ('instance').
    """

    alpha: float = 0.5
    labels: bool = True
    color_by: str = COLOR_BY[0]


def colours(count: int, palette: Palette | None = None) -> np.ndarray:
    """Colours (count, 3) in BGR: those of a palette in RGB, or where it has too few, ones far apart."""
    if palette is not None and not isinstance(palette, str) and len(palette) >= count:
        return np.array(palette, np.uint8).reshape(-1, 3)[:count, ::-1].copy()
    # The golden ratio keeps the hues of neighbours apart, however many there are.
    hsv = [(number * 0.618034 % 1, 0.6 + 0.13 * (number % 4), 1 - 0.16 * (number % 3)) for number in range(count)]
    rgb = np.array([hsv_to_rgb(*one) for one in hsv]).reshape(-1, 3)
    return (255 * rgb[:, ::-1]).round().astype(np.uint8)


def draw_instances(
    image: np.ndarray, found: Instances, classes: Sequence[str], palette: Palette | None, style: Style
) -> np.ndarray:
    """The image (H, W, 3), BGR, under instances, smaller ones above larger ones; the rest of it is as it was."""
    picture = image.copy()
    by_class = style.color_by == "class"
    chosen = colours(len(classes), palette)[found.labels] if by_class else colours(len(found.labels))
    areas = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    for number in np.argsort(-areas, kind="stable"):
        if found.masks is not None:
            _draw_mask(picture, found.masks[number], chosen[number].tolist(), style.alpha)
        else:
            left, top, right, bottom = found.boxes[number].round().astype(int).tolist()
            cv2.rectangle(picture, (left, top), (right, bottom), chosen[number].tolist(), _line(image))
    return _draw_labels(picture, found, classes, chosen) if style.labels else picture


def _draw_mask(picture: np.ndarray, mask: np.ndarray | dict, colour: list[int], alpha: float) -> None:
    """Blend a mask in, and draw its outline."""
    from pycocotools.mask import decode

    mask = decode(mask) if isinstance(mask, dict) else mask.view(np.uint8)
    left, top, width, height = cv2.boundingRect(mask)
    if not width:
        return
    part, mask = (one[top : top + height, left : left + width] for one in (picture, mask))
    blended = cv2.addWeighted(part, 1 - alpha, np.full_like(part, colour), alpha, 0)
    cv2.copyTo(blended, mask, part)
    outline, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))
    cv2.drawContours(picture, outline, -1, colour, _line(picture), cv2.LINE_AA)


def _line(image: np.ndarray) -> int:
    """Thickness of lines, in pixels."""
    return max(round(min(image.shape[:2]) / 300), 1)


def _font(image: np.ndarray) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_FONT, max(round(min(image.shape[:2]) / 40), 10))


def _draw_labels(picture: np.ndarray, found: Instances, classes: Sequence[str], chosen: np.ndarray) -> np.ndarray:
    """Name instances, best first, each on a plate beside its box where it hides no other plate."""
    font = _font(picture)
    canvas = Image.fromarray(picture)
    draw = ImageDraw.Draw(canvas)
    tall, pad = sum(font.getmetrics()), max(font.size // 5, 1)
    taken, plates = np.zeros((0, 4)), []
    for box, label, score, colour in zip(found.boxes, found.labels, found.scores, chosen.tolist(), strict=True):
        text = f"{classes[label]} {score:.2f}"
        places = _places(box.tolist(), font.getlength(text) + 2 * pad, tall, canvas.size)
        shared = np.minimum(places[:, None, 2:], taken[:, 2:]) - np.maximum(places[:, None, :2], taken[:, :2])
        plate = places[shared.clip(0).prod(axis=2).sum(axis=1).argmin()]
        taken = np.vstack([taken, plate])
        plates.append((plate, text, colour))
    for plate, text, colour in reversed(plates):  # the best on top
        draw.rectangle(plate.round().tolist(), fill=tuple(colour))
        bright = np.dot(colour, (0.114, 0.587, 0.299)) > 140
        draw.text((plate[0] + pad, plate[1]), text, font=font, fill="black" if bright else "white")
    return np.asarray(canvas)


def _places(box: list[float], wide: float, tall: float, size: tuple[int, int]) -> np.ndarray:
    """Where a plate may lie in a picture (width, height), the best first: above, below, beside and in its box."""
    left, top, right, bottom = box
    corners = [(left, top - tall), (left, bottom), (right - wide, top - tall), (right - wide, bottom)]
    corners += [(right, top), (left - wide, top), (left, top), ((left + right - wide) / 2, (top + bottom - tall) / 2)]
    inside = np.array(corners).clip(0, [max(size[0] - wide, 0), max(size[1] - tall, 0)])
    return np.hstack([inside, inside + np.array([wide, tall])])


def draw_segmentation_map(
    image: np.ndarray, labels: np.ndarray, classes: Sequence[str], palette: Palette | None, style: Style
) -> np.ndarray:
    """The image (H, W, 3), BGR, under a segmentation map (H, W), and at its right a legend of the map's classes."""
    table = colours(len(classes), palette)
    flat = table.take(labels, axis=0)
    picture = cv2.addWeighted(image, 1 - style.alpha, flat, style.alpha, 0)
    borders = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones([_line(image) + 1] * 2, np.uint8))
    cv2.copyTo(flat, (borders > 0).view(np.uint8), picture)
    return np.hstack([picture, _legend(picture, labels, classes, table)]) if style.labels else picture


def _legend(picture: np.ndarray, labels: np.ndarray, classes: Sequence[str], table: np.ndarray) -> np.ndarray:
    """Classes of a map, largest first, beside a picture; as wide for every map, as the frames of a video must be."""
    font = _font(picture)
    tall = round(1.5 * font.size)
    wide = round(max(font.getlength(name) for name in classes) + 2 * tall)
    canvas = Image.new("RGB", (wide, picture.shape[0]), "white")
    draw = ImageDraw.Draw(canvas)
    areas = np.bincount(labels.ravel(), minlength=len(classes))
    present = [number for number in np.argsort(-areas, kind="stable") if areas[number]]
    room = max(picture.shape[0] // tall, 1)
    shown = present if len(present) <= room else present[: room - 1]
    for row, number in enumerate(shown):
        middle = row * tall + tall / 2
        square = (tall / 3, middle - font.size / 2, tall / 3 + font.size, middle + font.size / 2)
        draw.rectangle(square, fill=tuple(table[number].tolist()), outline=(120, 120, 120))
        draw.text((1.4 * tall, middle), classes[number], font=font, fill="black", anchor="lm")
    if more := len(present) - len(shown):
        draw.text((tall / 3, (len(shown) + 0.5) * tall), f"and {more} more", font=font, fill="black", anchor="lm")
    return np.asarray(canvas)
