"""Predictions in tiles equal those of the whole image: interiors, seams, objects and masks."""

import time
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import shapely
import shapely.affinity
from helpers.perfect_detector import CLASSES, NO_FAULTS, Faults, Scene, detect, judge, predicted
from scipy.ndimage import label

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

    def segment(crop: np.ndarray) -> Prediction:
        sums = np.pad(crop[..., 0].astype(int), reach, "edge")
        parts = [
            sums[y : y + len(crop), x : x + crop.shape[1]]
            for y, x in product((0, 2 * reach), repeat=2)
        ]
        return Prediction(crop, None, (sum(parts) % 4).astype(np.uint8), CLASSES)

    batches = []

    def predict(crops: list[np.ndarray]) -> list[Prediction]:
        batches.append([crop.shape[:2] for crop in crops])
        return list(map(segment, crops))

    found = predict_tiled(predict, image, tile, overlap, batch_size)
    assert np.array_equal(found.segmentation, segment(image).segmentation) and found.image is image
    assert max(map(len, batches)) <= batch_size
    assert {size for batch in batches for size in batch} == {
        (min(tile, shape[0]), min(tile, shape[1]))
    }


@pytest.mark.parametrize(
    "rows",
    [
        ["1"],
        ["1111", "1001", "1111"],
        ["1101", "1101"],
        ["111", "101", "110"],
        ["101", "010", "101"],
        ["111111", "100001", "101101", "100001", "111111", "000001"],
        None,
    ],
)
def test_outlines_cover_exactly_the_pixels_of_a_mask(rows):
    mask = np.array([[pixel == "1" for pixel in row] for row in rows]) if rows else None
    mask = np.random.default_rng(0).random((30, 40)) > 0.5 if mask is None else mask
    polygons = outline(mask, (70, 120))
    assert polygons.is_valid and polygons.area == mask.sum()
    y, x = np.indices(mask.shape) + 0.5
    assert np.array_equal(shapely.contains_xy(polygons, x + 70, y + 120), mask)


def for_batches(predict):
    return lambda crops: list(map(predict, crops))


def faults(scene: Scene, found: Prediction) -> Faults:
    return judge(scene, found.instances.mask, found.labels.tolist())


def extent(mask: np.ndarray) -> list[int]:
    """Return left, top, right and bottom of a mask."""
    y, x = np.nonzero(mask)
    return [x.min(), y.min(), x.max() + 1, y.max() + 1]


def sample_of(*boxes: tuple[float, ...], score: float = 1.0, label: int = 0) -> Prediction:
    return predicted(np.zeros((1, 1, 3)), boxes, [score] * len(boxes), [label] * len(boxes))


def merge(shape: tuple[int, int], *samples: Prediction) -> Prediction:
    """Detect in tiles of 96 pixels with an overlap of 32, for each of which a sample is given."""
    results = iter(samples)
    merged = predict_tiled(for_batches(lambda crop: next(results)), np.zeros((*shape, 3)), 96, 32)
    assert next(results, None) is None
    return merged


class TestObjects:
    @pytest.mark.parametrize("jitter", [0, 0.4])
    @pytest.mark.parametrize("shape", [(200, 330), (330, 200)])
    def test_each_small_object_is_found_once_and_whole(self, shape, jitter):
        scene = Scene(*shape).add_random(60, 5, 24)
        found = predict_tiled(
            for_batches(partial(detect, jitter=jitter)), scene.image, 96, 25, batch_size=2
        )
        assert faults(scene, found) == NO_FAULTS
        assert len(found.boxes) == 60 and (np.diff(found.scores) <= 0).all()
        for box, mask in zip(found.boxes, found.instances.mask, strict=True):
            assert np.allclose(box, extent(mask), atol=jitter + 1e-5)

    @pytest.mark.parametrize("shape", [(500, 600), (600, 500)])
    @pytest.mark.parametrize("overlap", [0, 24, 60])  # of 60 pixels: three tiles meet
    def test_objects_of_any_size_are_joined(self, shape, overlap):
        scene = Scene(*shape).add_random(8, 200, 240).add_random(40, 24, 120)
        found = predict_tiled(for_batches(detect), scene.image, 96, overlap)
        assert faults(scene, found) == NO_FAULTS
        for box, mask in zip(found.boxes.tolist(), found.instances.mask, strict=True):
            assert box == extent(mask)

    @pytest.mark.parametrize("tile", [40, 57, 96, 128, 250])
    def test_tiles_of_any_size_lose_and_double_nothing(self, tile):
        scene = Scene(300, 310).add_random(4, 100, 150, seed=1).add_random(60, 6, 50, seed=1)
        assert (
            faults(scene, predict_tiled(for_batches(detect), scene.image, tile, tile // 4))
            == NO_FAULTS
        )

    @pytest.mark.parametrize("overlap", [0, 10, 24, 48])
    def test_ships_at_45_degrees_are_told_apart_by_their_masks(self, overlap):
        scene = Scene(400, 400).add_ships(length=40)
        found = predict_tiled(for_batches(detect), scene.image, 96, overlap)
        assert len(found.boxes) == scene.count > 200 and faults(scene, found) == NO_FAULTS

    def test_boxes_alone_are_found_once_and_whole(self):
        scene = Scene(300, 300).add_random(60, 5, 24)
        found = predict_tiled(for_batches(partial(detect, with_masks=False)), scene.image, 96, 25)
        assert (
            sorted(found.boxes.tolist()) == sorted(detect(scene.image).boxes.tolist())
            and found.masks is None
        )

    def test_boxes_alone_are_joined_to_the_box_that_agrees_best(self):
        """The boxes of two objects overlap by 60 %, and both tiles report both objects."""
        boxes = np.array([(70, 10, 90, 30), (75, 10, 95, 30)], float)
        samples = [sample_of(*(boxes - (start, 0, start, 0)).tolist()) for start in (0, 64)]
        assert sorted(merge((96, 160), *samples).boxes.tolist()) == boxes.tolist()

    def test_two_arms_of_an_object_are_joined_by_the_tile_that_sees_both(self):
        """The first tile sees the arms alone, so the detector reports them as two objects."""
        scene = Scene(96, 160)
        assert scene.add(
            np.array(
                [(30, 10), (140, 10), (140, 60), (30, 60), (30, 45), (120, 45), (120, 25), (30, 25)]
            )
        )

        def predict(image: np.ndarray) -> Prediction:
            numbers = label(image[..., 0])[0]
            return detect(np.stack([numbers, 0 * numbers, 0 * numbers], axis=2))

        found = predict_tiled(for_batches(predict), scene.image, 96, 32)
        assert len(found.boxes) == 1 and faults(scene, found) == NO_FAULTS

    @pytest.mark.parametrize("shift", [-1, 1])
    def test_an_object_on_the_seam_is_reported_once_if_tiles_disagree_on_its_centre(self, shift):
        lefts = [70 + shift, 70 - 64 - shift]
        found = merge((96, 160), *(sample_of((left, 10, left + 20, 30)) for left in lefts))
        assert len(found.boxes) == 1 and abs(found.boxes[0, 0] - 70) == 1

    @pytest.mark.parametrize("surer", ["part", "whole"])
    def test_a_whole_object_wins_over_parts_of_any_score(self, surer):
        """An object as large as the overlap, in the corner of four tiles, an eighth of the overlap
        off the seam.
        """
        samples = []
        for rows, columns in product(windows(160, 96, 32), repeat=2):
            box = [max(68 - window.start, 0) for window in (columns, rows)]
            box += [min(100 - window.start, 96) for window in (columns, rows)]
            whole = box[2] - box[0] == box[3] - box[1] == 32
            samples.append(sample_of(box, score=0.9 if whole == (surer == "whole") else 0.5))
        assert merge((160, 160), *samples).boxes.tolist() == [[68, 68, 100, 100]]

    @pytest.mark.parametrize("labels, count", [((0, 0), 1), ((0, 1), 2)])
    def test_only_objects_of_one_class_are_merged(self, labels, count):
        pairs = zip((0, 64), labels, strict=True)
        samples = [
            sample_of((70 - start, 10, 90 - start, 30), label=label) for start, label in pairs
        ]
        assert len(merge((96, 160), *samples).boxes) == count

    def test_overlapping_objects_of_one_tile_stay(self):
        boxes = [(10.0, 10.0, 30.0, 30.0), (10.0, 10.0, 30.0, 26.0)]
        assert merge((40, 40), sample_of(*boxes)).boxes.tolist() == [list(box) for box in boxes]

    @pytest.mark.parametrize("score", [0.5, 0.95])
    def test_a_part_near_a_tile_s_edge_joins_the_other_part(self, score):
        """The first tile's box ends at 94 of 96 pixels, with its centre in the tile's interior."""
        parts = (
            sample_of((40, 10, 94, 60), score=score),
            sample_of((30 - 64, 10, 200 - 64, 60), score=0.9),
        )
        found = merge((96, 160), *parts)
        assert found.boxes.tolist() == [[30, 10, 200, 60]]
        assert found.scores == pytest.approx([max(score, 0.9)])

    def test_an_image_without_objects(self):
        found = predict_tiled(for_batches(detect), Scene(100, 100).image, 64, 16)
        assert len(found.boxes) == 0 and found.masks.shape == (0, 100, 100)

    @pytest.mark.slow
    def test_merging_100_000_objects_with_masks_takes_a_minute(self):
        """Their boxes overlap, and half of them are reported twice."""
        corners = np.argwhere(np.ones((200, 333)))[:, ::-1] * 14
        ship = outline(np.rot90(np.tri(28, 28, 6) - np.tri(28, 28, -6)) > 0, (0, 0))
        shapes = np.array([shapely.affinity.translate(ship, *corner) for corner in corners])
        boxes = shapely.bounds(shapes)
        count = len(shapes)
        tiles = np.tile([0, 0, 5000, 3000], (count, 1))
        scores = np.full(count, 0.9)
        objects = Objects(shapes, boxes, scores, np.zeros(count, int), tiles, boxes < 0)
        again = objects.select(boxes[:, 0] > 2400)
        again = again._replace(tiles=again.tiles + np.array([2400, 0, 2400, 0]))
        begin = time.process_time()
        merged = merge_objects(concatenate([objects, again]))
        assert len(merged.scores) == count
        assert time.process_time() - begin < 90  # 60 s on a core that others share
