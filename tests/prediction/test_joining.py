"""Predictions in tiles equal those of the whole image: interiors, seams, objects and masks."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.perfect_detector import CLASSES, NO_FAULTS, Scene, detect, judge, predicted
from scipy.ndimage import label

from xcit_mm.models.windows import tiles_along
from xcit_mm.prediction import Prediction
from xcit_mm.prediction.seen import InTiles
from xcit_mm.prediction.sources import ImageSource
from xcit_mm.prediction.view import View


def predict_tiled(
    predict: Callable[[list[np.ndarray]], Iterable[Prediction]],
    image: np.ndarray,
    tile: int,
    overlap: int,
    is_detector: bool = True,
) -> Prediction:
    predictor = SimpleNamespace(
        batch_size=1000,
        is_detector=is_detector,
        names=CLASSES,
        palette=None,
        predict_arrays=lambda images, masks, resizes: predict(images),
    )
    view = View(1.0, whole=False, side=tile, overlap=overlap)
    with InTiles(predictor, ImageSource(image), view) as seen:
        return seen.result()


@pytest.mark.parametrize(
    ("shape", "tile", "overlap"),
    [((90, 150), 64, 16), ((64, 200), 64, 60), ((90, 150), 50, 0), ((30, 40), 64, 16)],
)
def test_a_map_that_depends_on_near_pixels_equals_that_of_the_whole_image(shape, tile, overlap):
    """Each class is that of a pixel up to 7 pixels away, fewer than half the overlap."""
    image = np.random.default_rng(0).integers(0, 4, (*shape, 3), np.uint8)
    reach = 7 if overlap else 0

    def segment(crop: np.ndarray) -> Prediction:
        shifted = np.pad(crop[..., 0], ((reach, 0), (0, 0)), "edge")[: len(crop)]
        return Prediction(crop, None, shifted, CLASSES)

    prediction = predict_tiled(partial(map, segment), image, tile, overlap, False)
    assert np.array_equal(prediction.segmentation, segment(image).segmentation)
    assert np.array_equal(prediction.image, image)


def check(scene: Scene, tile: int, overlap: int, detector: Callable = detect) -> Prediction:
    """Predict a scene in tiles, and check that each of its objects is found once and whole."""
    prediction = predict_tiled(partial(map, detector), scene.image, tile, overlap)
    masks = prediction.instances.mask
    assert judge(scene, masks, prediction.labels.tolist()) == NO_FAULTS
    for box, mask in zip(prediction.boxes, masks, strict=True):
        y, x = np.nonzero(mask)
        assert np.allclose(box, [x.min(), y.min(), x.max() + 1, y.max() + 1], atol=0.401)
    return prediction


def test_a_small_object_is_found_once_though_tiles_disagree_on_its_box():
    scene = Scene(200, 330).add_random(60, 5, 24)
    prediction = check(scene, 96, 25, partial(detect, jitter=0.4))
    assert len(prediction) == 60 and (np.diff(prediction.scores) <= 0).all()


# With an overlap of 60 of 96 pixels, three tiles meet.
@pytest.mark.parametrize(("tile", "overlap"), [(96, 0), (96, 60), (250, 62)])
def test_objects_of_any_size_are_joined(tile, overlap):
    scene = Scene(300, 400).add_random(4, 160, 200).add_random(20, 24, 120).add_random(30, 5, 24)
    check(scene, tile, overlap)


@pytest.mark.parametrize("overlap", [0, 48])
def test_ships_at_45_degrees_are_told_apart_by_their_masks(overlap):
    scene = Scene(300, 300).add_ships(length=40)
    assert len(check(scene, 96, overlap)) == scene.count > 100


def test_two_arms_of_an_object_are_joined_by_the_tile_that_sees_both():
    """The first tile sees the arms alone, so the detector reports them as two objects."""
    scene = Scene(96, 160)
    outer = [(30, 10), (140, 10), (140, 60), (30, 60)]
    inner = [(30, 45), (120, 45), (120, 25), (30, 25)]
    assert scene.add(np.array([*outer, *inner]))

    def detect_connected(image: np.ndarray) -> Prediction:
        numbers = label(image[..., 0])[0]
        return detect(np.stack([numbers, 0 * numbers, 0 * numbers], axis=2))

    assert len(check(scene, 96, 32, detect_connected)) == 1


def boxes_of(*objects: tuple[float, ...], left: int = 0) -> Prediction:
    """The prediction of a tile: left, top, right, bottom, score and label of objects."""
    columns = np.array(objects, float).reshape(-1, 6)
    boxes = columns[:, :4] - [left, 0, left, 0]
    return predicted(np.zeros((1, 1, 3)), boxes, columns[:, 4], columns[:, 5].astype(int))


def merge(shape: tuple[int, int], *tiles: Prediction) -> Prediction:
    """Merge the predictions of all tiles of 96 pixels with an overlap of 32."""
    given = iter(tiles)
    return predict_tiled(lambda crops: [next(given) for _ in crops], np.zeros((*shape, 3)), 96, 32)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            [(68, 10, 88, 30, 0.5, 0), (72, 10, 92, 30, 0.5, 0)],
            (72, 10, 92, 30, 0.9, 0),
            [(72, 10, 92, 30, 0.9), (68, 10, 88, 30, 0.5)],
            id="a box joins the one that agrees best",
        ),
        # The object's centre lies beyond the seam, and the first tile is surer of the part.
        pytest.param(
            [(70, 10, 96, 42, 0.9, 1)],
            (70, 10, 98, 42, 0.5, 0),
            [(70, 10, 98, 42, 0.5)],
            id="a cut part of another class yields to the whole",
        ),
        # The first tile's box ends at 94 of 96 pixels, with its centre in the tile's interior.
        pytest.param(
            [(40, 10, 94, 60, 0.5, 0)],
            (30, 10, 200, 60, 0.9, 0),
            [(30, 10, 160, 60, 0.9)],  # the image ends there
            id="a part near an edge joins the other part",
        ),
    ],
)
def test_two_tiles_report_each_object_once(first, second, expected):
    merged = merge((96, 160), boxes_of(*first), boxes_of(second, left=64))
    assert merged.masks is None
    assert np.allclose(merged.boxes, [row[:4] for row in expected])
    assert merged.scores == pytest.approx([row[4] for row in expected])


@pytest.mark.parametrize("surer", ["part", "whole"])
def test_a_whole_object_wins_over_parts_of_any_score(surer):
    """An object as large as the overlap, in the corner of four tiles, an eighth of the overlap off
    the seam.
    """
    tiles = []
    for rows, columns in product(tiles_along(160, 96, 32), repeat=2):
        box = [max(68 - window.start, 0) for window in (columns, rows)]
        box += [min(100 - window.start, 96) for window in (columns, rows)]
        is_whole = box[2] - box[0] == box[3] - box[1] == 32
        score = 0.9 if is_whole == (surer == "whole") else 0.5
        tiles.append(boxes_of((*box, score, 0)))
    assert merge((160, 160), *tiles).boxes.tolist() == [[68, 68, 100, 100]]
