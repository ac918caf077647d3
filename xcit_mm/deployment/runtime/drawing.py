"""Drawing of results over an image."""

from colorsys import hsv_to_rgb
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .results import Detections, Segmentation


def draw(image: np.ndarray, results: Detections | Segmentation, classes: list[str]) -> np.ndarray:
    """Draw results over an image (H, W, 3), RGB, and a legend beside a segmentation map."""
    colours = _colours(len(classes))
    font: Any = ImageFont.load_default(max(min(image.shape[:2]) // 40, 10))
    if isinstance(results, Segmentation):
        blended = (image + colours[results.labels].astype(np.uint16)) // 2
        return np.hstack([blended.astype(np.uint8), _legend(results.labels, classes, colours, font)])
    drawn = image.copy()
    areas = (results.boxes[:, 2:] - results.boxes[:, :2]).prod(axis=1)
    order = np.argsort(-areas, kind="stable")  # small objects on top
    for number, inside in zip(order, [] if results.masks is None else results.masks[order], strict=False):
        drawn[inside] = (drawn[inside] + colours[results.labels[number]].astype(np.uint16)) // 2
    canvas = Image.fromarray(drawn)
    pen = ImageDraw.Draw(canvas)
    for number in order:
        outline = tuple(colours[results.labels[number]].tolist())
        pen.rectangle(results.boxes[number].tolist(), outline=outline, width=max(min(image.shape[:2]) // 300, 1))
    for number in np.argsort(results.scores, kind="stable"):  # the best on top
        colour = colours[results.labels[number]]
        ink = "black" if colour @ np.array([0.299, 0.587, 0.114]) > 140 else "white"
        left, top = results.boxes[number, :2].tolist()
        text = f"{classes[results.labels[number]]} {results.scores[number]:.2f}"
        start = (left + 2, max(top - 1.3 * font.size, 0))
        _, label_top, label_right, label_bottom = pen.textbbox(start, text, font=font)
        pen.rectangle((left, label_top - 2, label_right + 2, label_bottom + 2), fill=tuple(colour.tolist()))
        pen.text(start, text, font=font, fill=ink)
    return np.array(canvas)


def _colours(count: int) -> np.ndarray:
    """Return distinct colours (count, 3), RGB: the golden ratio separates the hues of successive classes."""
    hsv = [(n * 0.618034 % 1, 0.85 - 0.2 * (n % 3 == 1), 0.95 - 0.2 * (n % 2)) for n in range(count)]
    return np.array([[round(255 * value) for value in hsv_to_rgb(*c)] for c in hsv], np.uint8).reshape(-1, 3)


def _legend(labels: np.ndarray, classes: list[str], colours: np.ndarray, font: Any) -> np.ndarray:
    """Draw the classes of a map, the largest first, as high as the map."""
    tall = 2 * font.size
    canvas = Image.new("RGB", (round(max(map(font.getlength, classes)) + 1.5 * tall), len(labels)), "white")
    pen = ImageDraw.Draw(canvas)
    areas = np.bincount(labels.ravel(), minlength=len(classes))
    present = [label for label in np.argsort(-areas, kind="stable") if areas[label]]
    for row, label in enumerate(present):
        middle = (row + 0.5) * tall
        square = (tall / 4, middle - tall / 4, 3 * tall / 4, middle + tall / 4)
        pen.rectangle(square, fill=tuple(colours[label].tolist()))
        pen.text((tall, middle), classes[label], font=font, fill="black", anchor="lm")
    return np.asarray(canvas)
