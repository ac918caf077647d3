"""Predictions are drawn in the right colors and places, and change no other pixel."""

from dataclasses import replace

import numpy as np
import pytest
import supervision as sv

from xcit_mm.prediction import Prediction
from xcit_mm.prediction.drawing import FONT
from xcit_mm.utils.palettes import make_palette

CLASSES = ("red", "grün", "蓝")
PALETTE = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]


@pytest.fixture
def image() -> np.ndarray:
    """(200, 300, 3)"""
    return np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)


def squares(image: np.ndarray, *corners: tuple[int, int], has_masks: bool = True) -> Prediction:
    """Squares at (x, y) in descending order of scores, with classes in turn."""
    boxes = np.array([(x, y, x + 20, y + 20) for x, y in corners], np.float32)
    masks = np.zeros((len(corners), *image.shape[:2]), bool)
    for mask, (x, y) in zip(masks, corners, strict=True):
        mask[y : y + 20, x : x + 20] = True
    number = np.arange(len(corners))
    instances = sv.Detections(boxes, masks if has_masks else None, 1 - number / 1000, number % 3)
    return Prediction(image, instances, None, CLASSES, PALETTE)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_masks_are_blended_and_other_pixels_unchanged(image, alpha):
    before = image.copy()
    drawn = squares(image, (30, 40), (100, 120)).draw(alpha=alpha, labels=False)
    assert np.array_equal(image, before)
    outside = np.ones(image.shape[:2], bool)
    for (x, y), bgr in (((30, 40), (0, 0, 200)), ((100, 120), (0, 200, 0))):
        inside = slice(y + 3, y + 17), slice(x + 3, x + 17)
        expected = (1 - alpha) * image[inside] + alpha * np.array(bgr)
        assert np.abs(drawn[inside] - expected).max() <= 1
        assert np.abs(drawn[y, x : x + 20] - np.array(bgr)).mean() < 40  # the outline
        outside[y - 2 : y + 22, x - 2 : x + 22] = False
    assert np.array_equal(drawn[outside], image[outside])


def test_a_detector_without_masks_gets_boxes(image):
    prediction = squares(image, (30, 40), has_masks=False)
    plain = prediction.draw(labels=False)
    assert (plain[40, 30:50] == (0, 0, 200)).all()
    assert np.array_equal(plain[45:55, 35:45], image[45:55, 35:45])
    assert np.array_equal(prediction.draw(min_score=2), image)


def test_an_object_that_a_user_labelled_has_a_name_and_no_score(image):
    predicted = squares(image, (280, 180), has_masks=False)
    labelled = replace(predicted, instances=replace(predicted.instances, confidence=None))
    assert len(labelled.above(1)) == 1
    plain = labelled.draw(labels=False)
    name, with_score = (
        np.ptp(np.nonzero((drawing.draw() != plain).any(axis=(0, 2))))
        for drawing in (labelled, predicted)
    )
    assert 0 < name < with_score - 10


def test_a_map_is_blended_beside_a_legend_of_its_classes(image):
    labels = np.zeros((200, 300), np.uint8)
    labels[:, 100:] = 2
    prediction = Prediction(image, None, labels, CLASSES, PALETTE)
    drawn = prediction.draw()
    plain = prediction.draw(labels=False)
    assert plain.shape == image.shape and np.array_equal(drawn[:, :300], plain)
    colors = make_palette(3, PALETTE)
    for label in (0, 2):
        expected = 0.5 * image[labels == label] + 0.5 * colors[label]
        assert np.abs(plain[labels == label] - expected).max() <= 1
    legend = drawn[:, 300:].reshape(-1, 3).tolist()
    assert [color in legend for color in colors.tolist()] == [True, False, True]
    other = Prediction(image, None, np.ones_like(labels), CLASSES, PALETTE).draw()
    assert other.shape == drawn.shape  # whatever the classes in the image


def test_a_font_that_is_given_draws_the_names(image):
    prediction = squares(image, (30, 40))
    other = FONT.replace("DejaVuSans", "DejaVuSerif")
    assert not np.array_equal(prediction.draw(font=other), prediction.draw())
