"""Predictions in tiles equal those of the whole image: interiors, seams, objects and masks."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import shapely
from helpers.perfect_detector import CLASSES, NO_FAULTS, Faults, Scene, detect, judge, predicted
from scipy.ndimage import label
from shapely.affinity import translate

from xcit_mm.prediction import Prediction
from xcit_mm.prediction.seams import Objects, concatenate, merge_objects, outline
from xcit_mm.prediction.tiles import predict_tiled, windows


@pytest.mark.parametrize(
    ("length", "tile", "overlap"),
    [(100, 40, 10), (100, 40, 39), (30, 40, 10), (41, 40, 20), (6000, 1024, 256), (7, 3, 0)],
)
def test_interiors_cover_the_axis_once_and_lie_half_an_overlap_from_inner_edges(
    length, tile, overlap
):
    tiles = windows(length, tile, overlap)
    pixels = list(range(length))
    assert [pixel for window in tiles for pixel in pixels[window.inside]] == pixels
    for window in tiles:
        assert window.stop - window.start == min(tile, length)
        assert pixels[window.start : window.stop][window.crop] == pixels[window.inside]
        assert window.edges == (window.start > 0, window.stop < length)
    for left, right in pairwise(tiles):
        assert left.stop - right.start >= overlap
        assert min(left.stop - left.inside.stop, right.inside.start - right.start) >= overlap // 2


@pytest.mark.parametrize(("tile", "overlap"), [(0, 0), (-5, 0), (64, 64), (64, -1)])
def test_invalid_tiles_raise(tile, overlap):
    with pytest.raises(ValueError, match="must be 0 <= overlap < tile"):
        windows(100, tile, overlap)


@pytest.mark.parametrize("shape", [(90, 150), (150, 90), (64, 200), (30, 40)])
@pytest.mark.parametrize(("tile", "overlap", "batch_size"), [(64, 16, 1), (64, 40, 4), (50, 0, 3)])
def test_a_map_that_depends_on_near_pixels_equals_that_of_the_whole_image(
    shape, tile, overlap, batch_size
):
    """Each class depends on 7 pixels in all directions, fewer than half the overlap."""
    image = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    reach = 7 if overlap else 0
    sizes = []

    def segment(crop: np.ndarray) -> Prediction:
        height, width = crop.shape[:2]
        padded = np.pad(crop[..., 0].astype(int), reach, "edge")
        corners = product((0, 2 * reach), repeat=2)
        total = sum(padded[y : y + height, x : x + width] for y, x in corners)
        return Prediction(crop, None, (total % 4).astype(np.uint8), CLASSES)

    def predict(crops: list[np.ndarray]) -> list[Prediction]:
        assert len(crops) <= batch_size
        sizes.extend(crop.shape[:2] for crop in crops)
        return list(map(segment, crops))

    prediction = predict_tiled(predict, image, tile, overlap, batch_size)
    assert np.array_equal(prediction.segmentation, segment(image).segmentation)
    assert prediction.image is image
    assert set(sizes) == {(min(tile, shape[0]), min(tile, shape[1]))}


@pytest.mark.parametrize(
    "mask",
    [
        np.ones((1, 1), bool),
        np.pad(np.zeros((2, 3), bool), 2, constant_values=True),  # with a hole
        np.eye(3, dtype=bool),
        np.random.default_rng(0).random((30, 40)) > 0.5,
    ],
    ids=["pixel", "hole", "diagonal", "random"],
)
def test_outlines_cover_exactly_the_pixels_of_a_mask(mask):
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


@pytest.mark.parametrize("jitter", [0, 0.4])
@pytest.mark.parametrize("shape", [(200, 330), (330, 200)])
def test_each_small_object_is_found_once_and_whole(shape, jitter):
    scene = Scene(*shape).add_random(60, 5, 24)
    prediction = predict_in_tiles(scene, 96, 25, partial(detect, jitter=jitter))
    assert faults(scene, prediction) == NO_FAULTS
    assert len(prediction.boxes) == 60 and (np.diff(prediction.scores) <= 0).all()
    for box, mask in zip(prediction.boxes, prediction.instances.mask, strict=True):
        assert np.allclose(box, extent(mask), atol=jitter + 1e-5)


def test_boxes_alone_are_found_once_and_whole():
    scene = Scene(300, 300).add_random(60, 5, 24)
    prediction = predict_in_tiles(scene, 96, 25, partial(detect, with_masks=False))
    expected = detect(scene.image).boxes
    assert sorted(prediction.boxes.tolist()) == sorted(expected.tolist())
    assert prediction.masks is None


# With an overlap of 60 of 96 pixels, three tiles meet.
@pytest.mark.parametrize(
    ("tile", "overlap"), [(96, 0), (96, 24), (96, 60), (40, 10), (57, 14), (250, 62)]
)
def test_objects_of_any_size_are_joined(tile, overlap):
    scene = Scene(500, 600).add_random(8, 200, 240).add_random(40, 24, 120)
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


def test_an_image_without_objects():
    prediction = predict_in_tiles(Scene(100, 100), 64, 16)
    assert len(prediction.boxes) == 0 and prediction.masks.shape == (0, 100, 100)


def boxes_of(*boxes: tuple[float, ...], score: float = 1.0, label: int = 0) -> Prediction:
    """The prediction of a tile."""
    return predicted(np.zeros((1, 1, 3)), boxes, [score] * len(boxes), [label] * len(boxes))


def merge(shape: tuple[int, int], *tiles: Prediction) -> Prediction:
    """Merge the predictions of all tiles of 96 pixels with an overlap of 32."""
    predictions = iter(tiles)
    merged = predict_tiled(lambda crops: [next(predictions)], np.zeros((*shape, 3)), 96, 32)
    assert next(predictions, None) is None
    return merged


def test_boxes_are_joined_to_the_box_that_agrees_best():
    """The boxes of two objects overlap by 60 %, and both tiles report both objects."""
    boxes = np.array([(70, 10, 90, 30), (75, 10, 95, 30)], float)
    tiles = [boxes_of(*(boxes - (start, 0, start, 0)).tolist()) for start in (0, 64)]
    assert sorted(merge((96, 160), *tiles).boxes.tolist()) == boxes.tolist()


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_object_on_the_seam_is_reported_once_if_tiles_disagree_on_its_centre(shift):
    lefts = [70 + shift, 70 - 64 - shift]
    merged = merge((96, 160), *(boxes_of((left, 10, left + 20, 30)) for left in lefts))
    assert len(merged.boxes) == 1 and abs(merged.boxes[0, 0] - 70) == 1


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
        tiles.append(boxes_of(box, score=0.9 if is_whole == (surer == "whole") else 0.5))
    assert merge((160, 160), *tiles).boxes.tolist() == [[68, 68, 100, 100]]


@pytest.mark.parametrize(("end", "label"), [(96, 1), (94, 0)])
def test_a_cut_part_of_another_class_or_with_a_shorter_box_yields_to_the_whole(end, label):
    """The object's centre lies beyond the seam, and the first tile is surer of the part."""
    part = boxes_of((70, 10, end, 42), score=0.9, label=label)
    whole = boxes_of((70 - 64, 10, 98 - 64, 42), score=0.5)
    assert merge((96, 160), part, whole).boxes.tolist() == [[70, 10, 98, 42]]


@pytest.mark.parametrize("labels, count", [((0, 0), 1), ((0, 1), 2)])
def test_only_objects_of_one_class_are_merged(labels, count):
    pairs = zip((0, 64), labels, strict=True)
    tiles = [boxes_of((70 - start, 10, 90 - start, 30), label=label) for start, label in pairs]
    assert len(merge((96, 160), *tiles).boxes) == count


def test_overlapping_objects_of_one_tile_stay():
    boxes = [(10.0, 10.0, 30.0, 30.0), (10.0, 10.0, 30.0, 26.0)]
    assert merge((40, 40), boxes_of(*boxes)).boxes.tolist() == list(map(list, boxes))


@pytest.mark.parametrize("score", [0.5, 0.95])
def test_a_part_near_a_tile_s_edge_joins_the_other_part(score):
    """The first tile's box ends at 94 of 96 pixels, with its centre in the tile's interior."""
    part = boxes_of((40, 10, 94, 60), score=score)
    other = boxes_of((30 - 64, 10, 200 - 64, 60), score=0.9)
    merged = merge((96, 160), part, other)
    assert merged.boxes.tolist() == [[30, 10, 200, 60]]
    assert merged.scores == pytest.approx([max(score, 0.9)])


@pytest.mark.slow
def test_merging_100_000_objects_with_masks_takes_a_minute():
    """Their boxes overlap, and half of them are reported twice."""
    corners = np.argwhere(np.ones((200, 333)))[:, ::-1] * 14
    ship = outline(np.rot90(np.tri(28, 28, 6) - np.tri(28, 28, -6)) > 0, (0, 0))
    shapes = np.array([translate(ship, *corner) for corner in corners])
    boxes = shapely.bounds(shapes)
    count = len(shapes)
    tiles = np.tile([0, 0, 5000, 3000], (count, 1))
    labels = np.zeros(count, int)
    objects = Objects(shapes, boxes, np.full(count, 0.9), labels, tiles, boxes < 0)
    again = objects.select(boxes[:, 0] > 2400)
    again = again._replace(tiles=again.tiles + np.array([2400, 0, 2400, 0]))
    begin = time.process_time()
    assert len(merge_objects(concatenate([objects, again])).scores) == count
    assert time.process_time() - begin < 90  # 60 s on a core that others share
