"""A prediction is read by other libraries, restored from COCO results, and shown by a notebook."""

import io
import json

import numpy as np
import pytest
import supervision as sv
from PIL import Image

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


def map_of(*shape: int) -> Prediction:
    """A map of sky over an image."""
    return Prediction(np.zeros(shape, np.uint8), None, np.zeros(shape[:2], np.uint8), ("sky",))


def test_supervision_and_pandas_read_the_objects(prediction):
    assert prediction.masks.sum(axis=(1, 2)).tolist() == [100, 100]
    detections = prediction.to_supervision()
    assert np.array_equal(detections.xyxy, prediction.boxes)
    assert np.array_equal(np.asarray(detections.mask), prediction.masks)
    assert detections.class_id.tolist() == [1, 0]
    assert detections.confidence.tolist() == [0.9, 0.4]
    assert detections["class_name"].tolist() == ["dog", "cat"]
    table = prediction.to_pandas()
    assert table.columns.tolist() == ["left", "top", "right", "bottom", "score", "label", "name"]
    assert table.iloc[1].tolist() == [40, 20, 50, 30, 0.4, 0, "cat"]
    assert repr(prediction) == "Prediction of 40x60 pixels: 1 dog, 1 cat"


def test_no_object_above_a_score_is_an_empty_prediction(prediction):
    assert len(prediction.above(0.4)) == 1
    nothing = prediction.above(1)
    assert nothing.masks.shape == (0, 40, 60) and len(nothing.to_supervision()) == 0
    assert nothing.draw().sum() == 0 and nothing.to_coco() == []
    assert repr(nothing) == "Prediction of 40x60 pixels: no objects"


@pytest.mark.parametrize("ids", [[30, 10], np.array([30, 10])], ids=["list", "array"])
def test_coco_results_restore_the_prediction(ids, prediction):
    results = json.loads(json.dumps(prediction.to_coco(5, ids)))
    assert [result["category_id"] for result in results] == [10, 30]
    assert [result["bbox"] for result in results] == [[5, 5, 10, 10], [40, 20, 10, 10]]
    restored = Prediction.from_coco(results, prediction.image, prediction.names, ids)
    assert np.array_equal(restored.boxes, prediction.boxes)
    assert np.array_equal(restored.masks, prediction.masks)
    assert np.array_equal(restored.labels, prediction.labels)
    assert np.allclose(restored.scores, prediction.scores)
    assert len(Prediction.from_coco([], prediction.image, prediction.names)) == 0
    with pytest.raises(ValueError, match=r"masks of \[40, 60\] pixels, but the image has"):
        Prediction.from_coco(results, np.zeros((20, 60, 3), np.uint8), prediction.names, [30, 10])


@pytest.mark.parametrize(
    "ids, message",
    [([30, 40], "category_id=10 is not one of 30, 40: give"), ([10], "1 category_ids.* 2 classes")],
)
def test_an_unknown_category_is_named(ids, message, prediction):
    results = prediction.to_coco(5, [30, 10])
    with pytest.raises(ValueError, match=message):
        Prediction.from_coco(results, prediction.image, prediction.names, ids)


def test_a_notebook_shows_the_drawing(prediction):
    shown = Image.open(io.BytesIO(prediction._repr_png_()))
    assert np.array_equal(np.asarray(shown)[..., ::-1], prediction.draw())
    plot = prediction.plot(0.0, 0.2, False)
    assert np.array_equal(np.asarray(plot)[..., ::-1], prediction.draw(0.0, 0.2, False))
    shown = Image.open(io.BytesIO(map_of(3000, 2000, 3)._repr_png_()))
    assert max(shown.size) == 1280


def test_a_raster_has_no_drawing():
    prediction = map_of(40, 60, 5)
    assert prediction._repr_png_() is None
    assert repr(prediction) == "Prediction of 40x60 pixels: sky"
    with pytest.raises(ValueError, match=r"\(40, 60, 5\): only \(H, W, 3\)"):
        prediction.plot()
