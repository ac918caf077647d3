"""Pictures of predictions: in the right colours and places, the photo else as it was, names readable."""

import numpy as np
import pytest
from PIL import ImageDraw

from xcit_mm.prediction.drawing import Style, draw_instances, draw_segmentation_map, make_palette
from xcit_mm.prediction.results import Instances
from xcit_mm.utils.run_lengths import encode_mask

CLASSES = ("red", "green", "blue")
PALETTE = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
NO_LABELS = Style(labels=False)


@pytest.fixture
def photo() -> np.ndarray:
    """(200, 300, 3)"""
    return np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)


def squares(*corners: tuple[int, int], side: int = 20, with_masks: bool = True) -> Instances:
    """Objects of 200x300 pixels at (x, y), surer and surer, of one class after the other."""
    masks = np.zeros((len(corners), 200, 300), bool)
    for mask, (x, y) in zip(masks, corners, strict=True):
        mask[y : y + side, x : x + side] = True
    boxes = np.array([(x, y, x + side, y + side) for x, y in corners], np.float32).reshape(-1, 4)
    number = np.arange(len(corners))
    return Instances(boxes, 1 - number / 1000, number % 3, masks if with_masks else None)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("coded", [False, True])
def test_masks_are_blended_and_nothing_else_changes(photo, alpha, coded):
    found = squares((30, 40), (100, 120))
    if coded:  # as after tiles
        found = found._replace(masks=[encode_mask(mask, (0, 0), mask.shape) for mask in found.masks])
    before = photo.copy()
    picture = draw_instances(photo, found, CLASSES, PALETTE, Style(alpha, labels=False))
    assert np.array_equal(photo, before)
    outside = np.ones(photo.shape[:2], bool)
    for (x, y), bgr in (((30, 40), (0, 0, 200)), ((100, 120), (0, 200, 0))):
        part = slice(y + 3, y + 17), slice(x + 3, x + 17)
        expected = (1 - alpha) * photo[part] + alpha * np.array(bgr)
        assert np.abs(picture[part] - expected).max() <= 1
        assert np.abs(picture[y, x : x + 20] - np.array(bgr)).mean() < 40  # the outline
        outside[y - 2 : y + 22, x - 2 : x + 22] = False
    assert np.array_equal(picture[outside], photo[outside])


def test_boxes_without_masks(photo):
    picture = draw_instances(photo, squares((30, 40), with_masks=False), CLASSES, PALETTE, NO_LABELS)
    assert (picture[40, 35:45] == (0, 0, 200)).all() and (picture[45:55, 50] == (0, 0, 200)).all()
    assert np.array_equal(picture[45:55, 35:45], photo[45:55, 35:45])


def test_a_small_object_is_drawn_above_a_large_one(photo):
    large, small = squares((10, 10), side=150), squares((50, 50))
    both = Instances(*(np.concatenate(pair) for pair in zip(small, large, strict=True)))
    both = both._replace(labels=np.array([1, 0]), scores=np.array([0.9, 0.5]))
    picture = draw_instances(photo, both, CLASSES, PALETTE, Style(1, labels=False))
    assert (picture[55:65, 55:65] == (0, 200, 0)).all()
    assert (picture[120, 120] == (0, 0, 200)).all()


def test_colours_of_classes_or_of_instances(photo):
    found = squares(*[(10 + 40 * number, 50) for number in range(6)])
    for color_by, count in (("class", 3), ("instance", 6)):
        picture = draw_instances(photo, found, CLASSES, PALETTE, Style(1, False, color_by))
        assert len({tuple(picture[60, 20 + 40 * number]) for number in range(6)}) == count


@pytest.fixture
def plates(monkeypatch) -> list[list[float]]:
    """The rectangles behind the names, as they are drawn."""
    drawn = []
    rectangle = ImageDraw.ImageDraw.rectangle
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "rectangle",
        lambda self, box, **kwargs: drawn.append(box) or rectangle(self, box, **kwargs),
    )
    return drawn


def test_labels_lie_beside_small_boxes_and_do_not_hide_each_other(photo, plates):
    corners = [(90, 60), (99, 60), (90, 69), (0, 0), (295, 0), (0, 195), (295, 195)]
    draw_instances(photo, squares(*corners, side=5), CLASSES, PALETTE, Style())
    plates.reverse()  # the best is drawn last, on top
    assert len(plates) == len(corners)
    for number, (left, top, right, bottom) in enumerate(plates):
        assert left >= 0 and top >= 0 and right <= 300 and bottom <= 200
        x, y = corners[number]
        assert max(left - x - 5, x - right, top - y - 5, y - bottom) < 20  # by its box
        for other in plates[:number]:
            assert min(right, other[2]) <= max(left, other[0]) or min(bottom, other[3]) <= max(top, other[1])


def test_labels_are_of_their_colour_with_letters_that_show(photo, plates):
    picture = draw_instances(photo, squares((100, 100)), CLASSES, [(250, 250, 250)] * 3, Style())
    left, top, right, bottom = (int(value) for value in plates[0])
    plate = picture[top:bottom, left:right].reshape(-1, 3)
    assert (plate == 250).all(axis=1).mean() > 0.4
    assert (plate < 60).all(axis=1).any()


def test_nothing_found_is_the_photo(photo):
    for found in (squares(), squares((10, 10))._replace(masks=np.zeros((1, 200, 300), bool))):
        assert np.array_equal(draw_instances(photo, found, CLASSES, None, NO_LABELS), photo)
    assert np.array_equal(draw_instances(photo, squares(), CLASSES, None, Style(color_by="instance")), photo)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_segmentation_maps_are_blended_in_the_palette(photo, kind):
    labels = np.zeros((200, 300), kind)
    labels[:, 100:200], labels[:, 200:] = 1, 2
    picture = draw_segmentation_map(photo, labels, CLASSES, PALETTE, Style(0.4, labels=False))
    assert picture.shape == photo.shape
    for number, bgr in enumerate(((0, 0, 200), (0, 200, 0), (200, 0, 0))):
        part = slice(None), slice(100 * number + 3, 100 * number + 97)
        assert np.abs(picture[part] - (0.6 * photo[part] + 0.4 * np.array(bgr))).max() <= 1


def legend(labels: np.ndarray, count: int) -> np.ndarray:
    """What stands beside a map of `count` classes."""
    image = np.zeros((*labels.shape, 3), np.uint8)
    names = [f"class {number}" for number in range(count)]
    return draw_segmentation_map(image, labels, names, None, Style())[:, labels.shape[1] :]


def test_the_legend_has_the_classes_of_the_map_largest_first():
    labels = np.full((200, 300), 4, np.uint8)
    labels[:50], labels[:10] = 1, 7
    shown = legend(labels, 9)
    rows = [np.flatnonzero((shown == colour).all(axis=2).any(axis=1)) for colour in make_palette(9)]
    assert [len(row) > 5 for row in rows] == [number in (1, 4, 7) for number in range(9)]
    assert rows[4][0] < rows[1][0] < rows[7][0]
    assert (shown[:, -2:] == 255).all()  # names end before the picture does


def test_the_legend_is_as_wide_for_every_map_and_says_what_it_lacks(monkeypatch):
    """A film's frames have one size; forty classes have no room beside 96 pixels."""
    texts = []
    write = ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, **kwargs: texts.append(text) or write(self, at, text, **kwargs),
    )
    few, many = np.zeros((96, 200), np.uint8), np.arange(96 * 200, dtype=np.uint8).reshape(96, 200) % 40
    assert legend(few, 40).shape == legend(many, 40).shape
    shown = len(texts) - 2
    assert texts[0] == "class 0" and texts[-1] == f"and {40 - shown} more"
    assert 3 < shown < 10


@pytest.mark.parametrize("palette", [None, "random", [(1, 2, 3)]])
def test_without_a_palette_colours_differ(palette):
    table = make_palette(20, palette)
    assert table.shape == (20, 3) and table.dtype == np.uint8
    distance = np.abs(table[:, None].astype(int) - table).sum(axis=2) + 1000 * np.eye(20)
    assert distance.min() > 20
    assert len(make_palette(0)) == 0


def test_a_picture_of_few_pixels():
    image = np.zeros((8, 8, 3), np.uint8)
    found = Instances(np.array([[0, 0, 8, 8.0]]), np.ones(1), np.zeros(1, int), None)
    assert draw_instances(image, found, CLASSES, PALETTE, Style()).shape == image.shape
    assert draw_segmentation_map(image, np.zeros((8, 8), np.uint8), CLASSES, PALETTE, Style()).shape[0] == 8
