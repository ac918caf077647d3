"""Predictions are drawn in the right colors and places, and change no other pixel."""

from dataclasses import replace

import numpy as np
import pytest
import supervision as sv

from xcit_mm.prediction import Prediction
from xcit_mm.prediction.drawing import FONT

CLASSES = ("red", "grün", "蓝")
PALETTE = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
BGR = np.array(PALETTE)[:, ::-1]


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


def test_masks_are_blended_and_other_pixels_unchanged(image):
    before = image.copy()
    drawn = squares(image, (30, 40), (100, 120)).draw()
    assert np.array_equal(image, before)
    outside = np.ones(image.shape[:2], bool)
    for (x, y), color in zip([(30, 40), (100, 120)], BGR, strict=False):
        inside = slice(y + 3, y + 17), slice(x + 3, x + 17)
        assert np.abs(drawn[inside] - (0.5 * image[inside] + 0.5 * color)).max() <= 1
        assert np.abs(drawn[y + 19, x : x + 20] - color).mean() < 40  # the outline
        outside[y - 30 : y + 22, x - 2 : x + 100] = False  # with the name
    assert np.array_equal(drawn[outside], image[outside])


def test_boxes_have_names_and_scores_those_of_a_user_have_no_scores(image):
    predicted = squares(image, (30, 40), has_masks=False)
    labelled = replace(predicted, instances=replace(predicted.instances, confidence=None))
    widths = []
    for prediction in (labelled, predicted):
        drawn = prediction.draw()
        assert (drawn[60, 30:50] == BGR[0]).all()
        assert np.array_equal(drawn[45:55, 35:45], image[45:55, 35:45])
        widths.append(np.ptp(np.nonzero((drawn != image).any(axis=(0, 2)))))
    assert 20 < widths[0] < widths[1] - 10
    other = FONT.replace("DejaVuSans", "DejaVuSerif")
    assert not np.array_equal(labelled.draw(font=other), labelled.draw())


def test_a_map_is_blended_beside_a_legend_of_its_classes(image):
    labels = np.zeros((200, 300), np.uint8)
    labels[:, 100:] = 2
    prediction = Prediction(image, None, labels, CLASSES, PALETTE)
    drawn = prediction.draw()
    assert np.abs(drawn[:, :300] - (0.5 * image + 0.5 * BGR[labels])).max() <= 1
    legend = drawn[:, 300:].reshape(-1, 3).tolist()
    assert [color in legend for color in BGR.tolist()] == [True, False, True]
    other = replace(prediction, segmentation=np.ones_like(labels)).draw()
    assert other.shape == drawn.shape  # whatever the classes in the image
