"""Predictions are drawn in the right colors and places, with readable labels, and change no other pixel."""

import numpy as np
import pytest
from PIL import ImageDraw

from xcit_mm.prediction.drawing import Style, draw_instances, draw_segmentation_map
from xcit_mm.prediction.results import Instances
from xcit_mm.utils.palettes import make_palette
from xcit_mm.utils.run_lengths import encode_mask

CLASSES = ("red", "green", "blue")
PALETTE = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
NO_LABELS = Style(labels=False)


@pytest.fixture
def image() -> np.ndarray:
    """(200, 300, 3)"""
    return np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)


@pytest.fixture
def drawn_boxes(monkeypatch) -> list[list[float]]:
    """Rectangles that Pillow draws: label boxes."""
    boxes, rectangle = [], ImageDraw.ImageDraw.rectangle

    def record(self, box, **kwargs):
        boxes.append(box)
        rectangle(self, box, **kwargs)

    monkeypatch.setattr(ImageDraw.ImageDraw, "rectangle", record)
    return boxes


def squares(*corners: tuple[int, int], side: int = 20, with_masks: bool = True) -> Instances:
    """Squares at (x, y) in an image of 200x300 pixels, in descending order of scores, with classes in turn."""
    masks = np.zeros((len(corners), 200, 300), bool)
    for mask, (x, y) in zip(masks, corners, strict=True):
        mask[y : y + side, x : x + side] = True
    boxes = np.array([(x, y, x + side, y + side) for x, y in corners], np.float32).reshape(-1, 4)
    number = np.arange(len(corners))
    return Instances(boxes, 1 - number / 1000, number % 3, masks if with_masks else None)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("coded", [False, True])
def test_masks_are_blended_and_other_pixels_unchanged(image, alpha, coded):
    found = squares((30, 40), (100, 120))
    if coded:  # as from tiles
        found = found._replace(masks=[encode_mask(mask) for mask in found.masks])
    before = image.copy()
    drawn = draw_instances(image, found, CLASSES, PALETTE, Style(alpha, labels=False))
    assert np.array_equal(image, before)
    outside = np.ones(image.shape[:2], bool)
    for (x, y), bgr in (((30, 40), (0, 0, 200)), ((100, 120), (0, 200, 0))):
        inside = slice(y + 3, y + 17), slice(x + 3, x + 17)
        expected = (1 - alpha) * image[inside] + alpha * np.array(bgr)
        assert np.abs(drawn[inside] - expected).max() <= 1
        assert np.abs(drawn[y, x : x + 20] - np.array(bgr)).mean() < 40  # the outline
        outside[y - 2 : y + 22, x - 2 : x + 22] = False
    assert np.array_equal(drawn[outside], image[outside])


def test_without_masks_boxes_are_drawn(image):
    drawn = draw_instances(image, squares((30, 40), with_masks=False), CLASSES, PALETTE, NO_LABELS)
    assert (drawn[40, 35:45] == (0, 0, 200)).all() and (drawn[45:55, 50] == (0, 0, 200)).all()
    assert np.array_equal(drawn[45:55, 35:45], image[45:55, 35:45])


def test_a_large_object_does_not_hide_a_small_one(image):
    large, small = squares((10, 10), side=150), squares((50, 50))
    both = Instances(*(np.concatenate(pair) for pair in zip(small[:4], large[:4], strict=True)))
    both = both._replace(labels=np.array([1, 0]), scores=np.array([0.9, 0.5]))
    drawn = draw_instances(image, both, CLASSES, PALETTE, Style(1, labels=False))
    assert (drawn[55:65, 55:65] == (0, 200, 0)).all() and (drawn[120, 120] == (0, 0, 200)).all()


@pytest.mark.parametrize("color_by, count", [("class", 3), ("instance", 6)])
def test_colors_per_class_or_per_instance(color_by, count, image):
    found = squares(*[(10 + 40 * number, 50) for number in range(6)])
    drawn = draw_instances(image, found, CLASSES, PALETTE, Style(1, False, color_by))
    assert len({tuple(drawn[60, 20 + 40 * number]) for number in range(6)}) == count


def test_labels_lie_beside_small_boxes_and_do_not_hide_each_other(image, drawn_boxes):
    corners = [(90, 60), (99, 60), (90, 69), (0, 0), (295, 0), (0, 195), (295, 195)]
    draw_instances(image, squares(*corners, side=5), CLASSES, PALETTE, Style())
    boxes = drawn_boxes[::-1]  # the best label is drawn last, on top
    assert len(boxes) == len(corners)
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and top >= 0 and right <= 300 and bottom <= 200
        x, y = corners[number]
        assert max(left - x - 5, x - right, top - y - 5, y - bottom) < 20  # distance from the object
        for other in boxes[:number]:
            assert min(right, other[2]) <= max(left, other[0]) or min(bottom, other[3]) <= max(top, other[1])


def test_letters_contrast_with_their_label_box(image, drawn_boxes):
    drawn = draw_instances(image, squares((100, 100)), CLASSES, [(250, 250, 250)] * 3, Style())
    left, top, right, bottom = (int(value) for value in drawn_boxes[0])
    label = drawn[top:bottom, left:right].reshape(-1, 3)
    assert (label == 250).all(axis=1).mean() > 0.4 and (label < 60).all(axis=1).any()


def test_without_objects_the_image_is_unchanged(image):
    empty_mask = squares((10, 10))._replace(masks=np.zeros((1, 200, 300), bool))
    for found, color_by in ((squares(), "class"), (squares(), "instance"), (empty_mask, "class")):
        assert np.array_equal(draw_instances(image, found, CLASSES, None, Style(0.5, False, color_by)), image)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_segmentation_maps_are_blended_in_the_palette(image, dtype):
    labels = np.repeat(np.arange(3, dtype=dtype), 100)[None].repeat(200, axis=0)
    drawn = draw_segmentation_map(image, labels, CLASSES, PALETTE, Style(0.4, labels=False))
    assert drawn.shape == image.shape
    for number, bgr in enumerate(((0, 0, 200), (0, 200, 0), (200, 0, 0))):
        inside = slice(None), slice(100 * number + 3, 100 * number + 97)
        assert np.abs(drawn[inside] - (0.6 * image[inside] + 0.4 * np.array(bgr))).max() <= 1


def legend(labels: np.ndarray, count: int) -> np.ndarray:
    """The legend beside a map of `count` classes."""
    image = np.zeros((*labels.shape, 3), np.uint8)
    names = [f"class {number}" for number in range(count)]
    return draw_segmentation_map(image, labels, names, None, Style())[:, labels.shape[1] :]


def test_the_legend_lists_the_map_s_classes_largest_first():
    labels = np.full((200, 300), 4, np.uint8)
    labels[:50], labels[:10] = 1, 7
    shown = legend(labels, 9)
    rows = [np.flatnonzero((shown == color).all(axis=2).any(axis=1)) for color in make_palette(9)]
    assert [len(row) > 5 for row in rows] == [number in (1, 4, 7) for number in range(9)]
    assert rows[4][0] < rows[1][0] < rows[7][0]
    assert (shown[:, -2:] == 255).all()  # names are not cut


def test_the_legend_has_the_same_width_for_every_frame_and_counts_omitted_classes(monkeypatch):
    texts, write = [], ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, **kwargs: texts.append(text) or write(self, at, text, **kwargs),
    )
    few, many = np.zeros((96, 200), np.uint8), np.arange(96 * 200, dtype=np.uint8).reshape(96, 200) % 40
    assert legend(few, 40).shape == legend(many, 40).shape
    shown = len(texts) - 2
    assert 3 < shown < 10 and texts[0] == "class 0" and texts[-1] == f"and {40 - shown} more"


@pytest.mark.parametrize("palette", [None, "random", [(1, 2, 3)]])
def test_without_a_sufficient_palette_colors_differ(palette):
    colors = make_palette(20, palette)
    assert colors.shape == (20, 3) and colors.dtype == np.uint8 and len(make_palette(0)) == 0
    distance = np.abs(colors[:, None].astype(int) - colors).sum(axis=2) + 1000 * np.eye(20)
    assert distance.min() > 20


def test_an_image_of_8_pixels_is_drawn_on():
    image = np.zeros((8, 8, 3), np.uint8)
    found = Instances(np.array([[0, 0, 8, 8.0]]), np.ones(1), np.zeros(1, int), None)
    assert draw_instances(image, found, CLASSES, PALETTE, Style()).shape == image.shape
    assert draw_segmentation_map(image, np.zeros((8, 8), np.uint8), CLASSES, PALETTE, Style()).shape[0] == 8
