"""A prediction is read by other libraries."""

import json

import numpy as np
import pytest
import supervision as sv
from pycocotools import mask as rle

from xcit_mm.prediction import Prediction


@pytest.fixture(params=["compact", "arrays"])
def prediction(request) -> Prediction:
    """A dog and a cat in an image of 40x60 pixels."""
    masks = np.zeros((2, 40, 60), bool)
    masks[0, 5:15, 5:15] = masks[1, 20:30, 40:50] = True
    boxes = np.array([[5, 5, 15, 15], [40, 20, 50, 30]], np.float32)
    instances = sv.Detections(boxes, masks, np.array([0.9, 0.4]), np.array([1, 0]))
    if request.param == "compact":
        instances = instances.to_compact_masks()
    return Prediction(np.zeros((40, 60, 3), np.uint8), instances, None, ("cat", "dog"))


def test_supervision_and_pycocotools_read_the_objects(prediction):
    detections = prediction.to_supervision()
    assert np.array_equal(np.asarray(detections.mask), prediction.masks)
    assert detections["class_name"].tolist() == ["dog", "cat"]
    results = json.loads(json.dumps(prediction.to_coco(5, np.array([30, 10]))))
    assert [(result["image_id"], result["category_id"]) for result in results] == [(5, 10), (5, 30)]
    assert [result["bbox"] for result in results] == [[5, 5, 10, 10], [40, 20, 10, 10]]
    assert [result["score"] for result in results] == [0.9, 0.4]
    masks = [rle.decode(result["segmentation"]) for result in results]
    assert np.array_equal(masks, prediction.masks)
    assert repr(prediction) == "Prediction of 40x60 pixels: 1 dog, 1 cat"


def test_without_objects_of_a_score_a_prediction_is_empty(prediction):
    assert len(prediction.above(0.4)) == 2 and len(prediction.above(0.41)) == 1
    nothing = prediction.above(1)
    assert nothing.masks.shape == (0, 40, 60) and len(nothing.to_supervision()) == 0
    assert nothing.draw().sum() == 0 and nothing.to_coco() == []
    assert repr(nothing) == "Prediction of 40x60 pixels: no objects"


def test_a_raster_is_drawn_by_its_first_bands():
    for bands in (np.zeros((40, 60, 5), np.uint8), np.zeros((40, 60))):
        prediction = Prediction(bands, None, np.zeros((40, 60), np.uint8), ("sky",))
        assert repr(prediction) == "Prediction of 40x60 pixels: sky"
        assert prediction.draw().shape[0] == 40
