"""Predictions in tiles equal those of the whole image: interiors, seams, objects and masks."""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
import shapely
from helpers.perfect_detector import CLASSES, NO_FAULTS, Faults, Scene, detect, judge, predicted
from scipy.ndimage import label

from xcit_mm.prediction import Prediction
from xcit_mm.prediction.seams import outline
from xcit_mm.prediction.tiles import predict_tiled, windows


@pytest.mark.parametrize("shape", [(90, 150), (64, 200), (30, 40)])
@pytest.mark.parametrize(("tile", "overlap", "batch_size"), [(64, 16, 1), (64, 60, 4), (50, 0, 3)])
def test_a_map_that_depends_on_near_pixels_equals_that_of_the_whole_image(
    shape, tile, overlap, batch_size
):
    """Each class depends on 7 pixels in all directions, fewer than half the overlap."""
    image = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    reach = 7 if overlap else 0

    def segment(crop: np.ndarray) -> Prediction:
        height, width = crop.shape[:2]
        padded = np.pad(crop[..., 0].astype(int), reach, "edge")
        corners = product((0, 2 * reach), repeat=2)
        total = sum(padded[y : y + height, x : x + width] for y, x in corners)
        return Prediction(crop, None, (total % 4).astype(np.uint8), CLASSES)

    def predict(crops: list[np.ndarray]) -> list[Prediction]:
        assert len(crops) <= batch_size
        return list(map(segment, crops))

    prediction = predict_tiled(predict, image, tile, overlap, batch_size)
    assert np.array_equal(prediction.segmentation, segment(image).segmentation)
    assert prediction.image is image


def test_outlines_cover_exactly_the_pixels_of_a_mask():
    mask = np.random.default_rng(0).random((30, 40)) > 0.5  # holes, diagonals, single pixels
    polygons = outline(mask, (70, 120))
    assert polygons.is_valid and polygons.area == mask.sum()
    y, x = np.indices(mask.shape) + 0.5
    assert np.array_equal(shapely.contains_xy(polygons, x + 70, y + 120), mask)


def predict_in_tiles(
    scene: Scene, tile: int, overlap: int, detector: Callable[..., Prediction] = detect
) -> Prediction:
    def predict(crops: list[np.ndarray]) -> list[Prediction]:
        return list(map(detector, crops))

    return predict_tiled(predict, scene.image, tile, overlap, batch_size=2)


def faults(scene: Scene, prediction: Prediction) -> Faults:
    return judge(scene, prediction.instances.mask, prediction.labels.tolist())


def extent(mask: np.ndarray) -> list[int]:
    """Return left, top, right and bottom of a mask."""
    y, x = np.nonzero(mask)
    return [x.min(), y.min(), x.max() + 1, y.max() + 1]


def test_each_small_object_is_found_once_and_whole_though_tiles_disagree_on_its_box():
    scene = Scene(200, 330).add_random(60, 5, 24)
    prediction = predict_in_tiles(scene, 96, 25, partial(detect, jitter=0.4))
    assert faults(scene, prediction) == NO_FAULTS
    assert len(prediction.boxes) == 60 and (np.diff(prediction.scores) <= 0).all()
    for box, mask in zip(prediction.boxes, prediction.instances.mask, strict=True):
        assert np.allclose(box, extent(mask), atol=0.401)


# With an overlap of 60 of 96 pixels, three tiles meet.
@pytest.mark.parametrize(
    ("tile", "overlap"), [(96, 0), (96, 24), (96, 60), (40, 10), (57, 14), (250, 62)]
)
def test_objects_of_any_size_are_joined(tile, overlap):
    scene = Scene(500, 600).add_random(8, 200, 240).add_random(40, 24, 120).add_random(60, 5, 24)
    prediction = predict_in_tiles(scene, tile, overlap)
    assert faults(scene, prediction) == NO_FAULTS
    for box, mask in zip(prediction.boxes.tolist(), prediction.instances.mask, strict=True):
        assert box == extent(mask)


@pytest.mark.parametrize("overlap", [0, 10, 48])
def test_ships_at_45_degrees_are_told_apart_by_their_masks(overlap):
    scene = Scene(400, 400).add_ships(length=40)
    prediction = predict_in_tiles(scene, 96, overlap)
    assert len(prediction.boxes) == scene.count > 200
    assert faults(scene, prediction) == NO_FAULTS


def test_two_arms_of_an_object_are_joined_by_the_tile_that_sees_both():
    """The first tile sees the arms alone, so the detector reports them as two objects."""
    scene = Scene(96, 160)
    outer = [(30, 10), (140, 10), (140, 60), (30, 60)]
    inner = [(30, 45), (120, 45), (120, 25), (30, 25)]
    assert scene.add(np.array([*outer, *inner]))

    def detect_connected(image: np.ndarray) -> Prediction:
        numbers = label(image[..., 0])[0]
        return detect(np.stack([numbers, 0 * numbers, 0 * numbers], axis=2))

    prediction = predict_in_tiles(scene, 96, 32, detect_connected)
    assert len(prediction.boxes) == 1 and faults(scene, prediction) == NO_FAULTS


def boxes_of(*objects: tuple[float, ...], left: int = 0) -> Prediction:
    """The prediction of a tile: left, top, right, bottom, score and label of objects."""
    columns = np.array(objects, float).reshape(-1, 6)
    boxes = columns[:, :4] - [left, 0, left, 0]
    return predicted(np.zeros((1, 1, 3)), boxes, columns[:, 4], columns[:, 5].astype(int))


def merge(shape: tuple[int, int], *tiles: Prediction) -> Prediction:
    """Merge the predictions of all tiles of 96 pixels with an overlap of 32."""
    predictions = iter(tiles)
    merged = predict_tiled(lambda crops: [next(predictions)], np.zeros((*shape, 3)), 96, 32)
    assert next(predictions, None) is None
    return merged


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            [(68, 10, 88, 30, 0.5, 0), (72, 10, 92, 30, 0.5, 0)],
            (72, 10, 92, 30, 0.9, 0),
            [(72, 10, 92, 30, 0.9), (68, 10, 88, 30, 0.5)],
            id="a box joins the one that agrees best",
        ),
        pytest.param(
            [(69, 10, 89, 30, 1, 0)],
            (71, 10, 91, 30, 0.9, 0),
            [(69, 10, 89, 30, 1)],
            id="tiles see the centre before the seam",
        ),
        pytest.param(
            [(71, 10, 91, 30, 1, 0)],
            (69, 10, 89, 30, 0.9, 0),
            [(71, 10, 91, 30, 1)],
            id="tiles see the centre beyond the seam",
        ),
        pytest.param(
            [(70, 10, 90, 30, 1, 0)],
            (70, 10, 90, 30, 0.9, 1),
            [(70, 10, 90, 30, 1), (70, 10, 90, 30, 0.9)],
            id="two classes are two objects",
        ),
        # The object's centre lies beyond the seam, and the first tile is surer of the part.
        pytest.param(
            [(70, 10, 96, 42, 0.9, 1)],
            (70, 10, 98, 42, 0.5, 0),
            [(70, 10, 98, 42, 0.5)],
            id="a cut part of another class yields to the whole",
        ),
        pytest.param(
            [(70, 10, 94, 42, 0.9, 0)],
            (70, 10, 98, 42, 0.5, 0),
            [(70, 10, 98, 42, 0.5)],
            id="a part with a shorter box yields to the whole",
        ),
        # The first tile's box ends at 94 of 96 pixels, with its centre in the tile's interior.
        *(
            pytest.param(
                [(40, 10, 94, 60, score, 0)],
                (30, 10, 200, 60, 0.9, 0),
                [(30, 10, 200, 60, max(score, 0.9))],
                id=f"a part of score {score} near an edge joins the other part",
            )
            for score in (0.5, 0.95)
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
    for rows, columns in product(windows(160, 96, 32), repeat=2):
        box = [max(68 - window.start, 0) for window in (columns, rows)]
        box += [min(100 - window.start, 96) for window in (columns, rows)]
        is_whole = box[2] - box[0] == box[3] - box[1] == 32
        score = 0.9 if is_whole == (surer == "whole") else 0.5
        tiles.append(boxes_of((*box, score, 0)))
    assert merge((160, 160), *tiles).boxes.tolist() == [[68, 68, 100, 100]]


def test_overlapping_objects_of_one_tile_stay():
    boxes = [(10.0, 10.0, 30.0, 30.0), (10.0, 10.0, 30.0, 26.0)]
    merged = merge((40, 40), boxes_of(*((*box, 1, 0) for box in boxes)))
    assert merged.boxes.tolist() == list(map(list, boxes))
