"""Predictions in tiles equal those of the whole image: weights, seams, objects and masks."""

import os
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_merging import report
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from perfect_detector import NO_FAULTS, Faults, Scene, detect, for_batches, judge
from pycocotools.mask import toBbox
from scipy.ndimage import label

from xcit_mm.prediction import tiled_segmentation
from xcit_mm.prediction.joining import merge_tiles
from xcit_mm.prediction.tiled_detection import detect_in_tiles
from xcit_mm.prediction.tiled_segmentation import iter_segmented, segment_in_tiles
from xcit_mm.prediction.tiles import TiledImage, windows
from xcit_mm.utils.run_lengths import decode_crop


@pytest.mark.parametrize(
    ("length", "tile", "overlap"),
    [(100, 40, 10), (100, 40, 39), (30, 40, 10), (41, 40, 20), (1500, 1000, 500), (6000, 1024, 256), (7, 3, 0)],
)
def test_windows_cover_the_axis_with_weights_of_1_and_no_step_at_seams(length, tile, overlap):
    tiles = windows(length, tile, overlap)
    weights = torch.zeros(length)
    for window in tiles:
        assert window.stop - window.start == min(tile, length)
        weights[window.start : window.stop] += window.weight
    assert torch.allclose(weights, torch.ones(length), atol=1e-6)
    for left, right in pairwise(tiles):
        assert left.stop - right.start >= overlap
        assert left.interior[1] == right.interior[0]
        assert max(right.weight[0], left.weight[-1]) <= 1 / (overlap + 1) + 1e-6


@pytest.mark.parametrize(("tile", "overlap"), [(0, 0), (-5, 0), (64, 64), (64, -1)])
def test_invalid_tiles_raise(tile, overlap):
    with pytest.raises(ValueError, match="must be 0 <= overlap < tile"):
        windows(100, tile, overlap)


class TestSegmentation:
    @staticmethod
    def logits(image: np.ndarray) -> torch.Tensor:
        """Class scores (C, H, W), each of a pixel's neighbourhood, which a tile's edge cuts."""
        values = torch.from_numpy(image.copy()).permute(2, 0, 1).float()
        return torch.nn.functional.avg_pool2d(values[None], 9, 1, 4, count_include_pad=False)[0]

    @staticmethod
    def noise(*shape: int) -> np.ndarray:
        return np.random.default_rng(0).random((*shape, 3), dtype=np.float32)

    @pytest.mark.parametrize("shape", [(90, 150), (150, 90), (64, 200), (30, 40)])
    @pytest.mark.parametrize(("tile", "overlap", "batch_size"), [(64, 16, 1), (64, 40, 4), (50, 0, 3)])
    def test_maps_equal_those_of_all_logits_blended(self, shape, tile, overlap, batch_size):
        image = self.noise(*shape)
        blended = torch.zeros(3, *shape)
        for rows, columns in product(*(windows(length, tile, overlap) for length in shape)):
            part = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            blended[(slice(None), *part)] += self.logits(image[part]) * rows.weight[:, None] * columns.weight
        batches = []

        def predict(crops: list[np.ndarray]) -> list[SegDataSample]:
            batches.append([crop.shape[:2] for crop in crops])
            return [SegDataSample(seg_logits=PixelData(data=self.logits(crop))) for crop in crops]

        sample = segment_in_tiles(predict, image, tile, overlap, batch_size=batch_size)
        assert max(map(len, batches)) <= batch_size
        assert {size for batch in batches for size in batch} == {(min(tile, shape[0]), min(tile, shape[1]))}
        top = blended.topk(2, dim=0).values
        clear = top[0] - top[1] > 1e-5
        assert clear.float().mean() > 0.99
        assert torch.equal(sample.pred_sem_seg.data[0][clear], blended.argmax(dim=0)[clear].int())

    @pytest.mark.parametrize("shape", [(200, 90), (90, 200)])
    @pytest.mark.parametrize(("tile", "overlap"), [(64, 16), (64, 48)])  # of 48 pixels: three tiles meet
    def test_strips_are_equal_wherever_prediction_begins(self, shape, tile, overlap):
        image = self.noise(*shape)
        tiled = TiledImage(lambda *window: image[window], shape, tile, overlap)
        whole = list(iter_segmented(for_batches(self.logits), tiled))
        assert sum(len(labels) for _, labels in whole) == shape[0]
        for first in range(1, len(whole)):
            strips = iter_segmented(for_batches(self.logits), tiled, first=first)
            for (start, labels), (expected_start, expected) in zip(strips, whole[first:], strict=True):
                assert start == expected_start and torch.equal(labels, expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_logits_beyond_a_limit_are_stored_without_an_effect(self, dtype, monkeypatch):
        image = self.noise(200, 160)
        tiled = TiledImage(lambda *window: image[window], (200, 160), 64, 40)
        maps = []
        for limit in (2**29, 50_000, 0):
            monkeypatch.setattr(tiled_segmentation, "MAX_HELD", limit)
            strips = iter_segmented(for_batches(lambda crop: self.logits(crop).to(dtype)), tiled)
            maps.append(torch.cat([labels for _, labels in strips]))
        assert torch.equal(maps[0], maps[1]) and torch.equal(maps[0], maps[2])

    def test_a_full_disk_is_reported_with_the_way_out(self, monkeypatch):
        image = self.noise(200, 160)
        monkeypatch.setattr(tiled_segmentation, "MAX_HELD", 0)
        full = partial(Path.open, Path("/dev/full"), "r+b", buffering=0)
        monkeypatch.setattr(tiled_segmentation, "TemporaryFile", full)
        tiled = TiledImage(lambda *window: image[window], (200, 160), 64, 40)
        with pytest.raises(OSError, match=r"^No space left on device: .*; set TMPDIR to a folder with more space$"):
            list(iter_segmented(for_batches(self.logits), tiled))

    @pytest.mark.slow
    def test_memory_does_not_grow_with_the_width(self):
        """Of 150 classes, a strip as wide as the overlap would take 19 kB per pixel of the width."""
        code = """
import resource, sys, numpy as np, torch
from xcit_mm.prediction import tiled_segmentation
from xcit_mm.prediction.tiles import TiledImage

tiled_segmentation.MAX_HELD = 2**24
tile = torch.rand(150, 64, 64)
for width in (640, 20_000):
    image = TiledImage(lambda rows, columns: np.zeros(1), (128, width), 64, 32)
    for _ in tiled_segmentation.iter_segmented(lambda tiles: [tile.clone() for _ in tiles], image):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
        options = dict(capture_output=True, text=True, check=True)
        malloc = dict(MALLOC_MMAP_THRESHOLD_="200000")  # without fragments of freed memory
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | malloc, **options)
        narrow, wide = map(int, done.stdout.split())
        assert wide - narrow < 60_000  # kB; 400,000 if all logits were held

    def test_empty_tiles_are_skipped_without_an_effect_on_valid_pixels(self):
        image = self.noise(200, 160)
        image[:110, 60:] = np.nan
        counts = []

        def predict(crops: list[np.ndarray]) -> list[torch.Tensor]:
            counts[-1] += len(crops)
            return list(map(self.logits, crops))

        def read(rows: slice, columns: slice) -> np.ndarray | None:
            is_empty = np.isnan(image[rows, columns]).all()
            return None if is_empty else np.nan_to_num(image[rows, columns])

        maps = []
        for reader in (read, lambda *window: np.nan_to_num(image)[window]):
            counts.append(0)
            tiled = TiledImage(reader, (200, 160), 64, 16)
            maps.append(torch.cat([labels for _, labels in iter_segmented(predict, tiled)]))
        assert counts[0] < counts[1]
        valid = torch.from_numpy(np.isfinite(image[..., 0]))
        assert torch.equal(maps[0][valid], maps[1][valid])

    def test_a_single_channel_has_a_threshold(self):
        image = self.noise(60, 90)

        def predict(crop: np.ndarray) -> SegDataSample:
            return SegDataSample(seg_logits=PixelData(data=torch.from_numpy(crop[..., 0].copy())[None]))

        sample = segment_in_tiles(for_batches(predict), image, 32, 8, threshold=0.3)
        clear = np.abs(image[..., 0] - 0.3) > 1e-5
        assert np.array_equal(sample.pred_sem_seg.data[0].numpy()[clear], (image[..., 0] > 0.3)[clear])


def faults(scene: Scene, found: InstanceData) -> Faults:
    return judge(scene, [code["counts"] for code in found.masks], found.labels.tolist(), found.cut.tolist())


def sample_of(*boxes: tuple[float, ...], score: float = 1.0, label: int = 0) -> DetDataSample:
    scores, labels = torch.full((len(boxes),), score), torch.full((len(boxes),), label)
    boxes = torch.tensor(boxes, dtype=torch.float).reshape(-1, 4)
    return DetDataSample(pred_instances=InstanceData(bboxes=boxes, scores=scores, labels=labels))


def merge(shape: tuple[int, int], *samples: DetDataSample) -> InstanceData:
    """Detect in tiles of 96 pixels with an overlap of 32, for each of which a sample is given."""
    results = iter(samples)
    merged = detect_in_tiles(for_batches(lambda crop: next(results)), np.zeros((*shape, 3)), 96, 32).pred_instances
    assert next(results, None) is None and "sides" not in merged
    return merged


class TestDetection:
    @pytest.mark.parametrize("jitter", [0, 0.4])
    @pytest.mark.parametrize("shape", [(200, 330), (330, 200)])
    def test_each_small_object_is_found_once_and_whole(self, shape, jitter):
        scene = Scene(*shape).add_random(60, 5, 24)
        predict = for_batches(partial(detect, jitter=jitter))
        found = detect_in_tiles(predict, scene.image, 96, 25, batch_size=2).pred_instances
        assert faults(scene, found) == NO_FAULTS
        assert len(found) == 60 and (found.scores.diff() <= 0).all()
        for box, code in zip(found.bboxes, found.masks, strict=True):
            crop = decode_crop(code["counts"], *shape)
            height, width = crop.mask.shape
            expected = torch.tensor([crop.left, crop.top, crop.left + width, crop.top + height]).float()
            assert torch.allclose(box, expected, atol=jitter + 1e-5)

    @pytest.mark.parametrize("shape", [(500, 600), (600, 500)])
    @pytest.mark.parametrize("overlap", [24, 60])  # of 60 pixels: three tiles meet
    def test_objects_of_up_to_ten_times_the_overlap_are_joined(self, shape, overlap):
        scene = Scene(*shape).add_random(8, 200, 240).add_random(40, 24, 120)
        found = detect_in_tiles(for_batches(detect), scene.image, 96, overlap).pred_instances
        assert faults(scene, found) == NO_FAULTS
        assert found.cut.float().mean() < 0.2  # objects that end within a pixel or two of a tile's edge
        for box, code in zip(found.bboxes.tolist(), found.masks, strict=True):
            left, top, width, height = toBbox(code)
            assert box == [left, top, left + width, top + height]

    @pytest.mark.parametrize("overlap", [10, 24, 48])
    def test_ships_at_45_degrees_are_told_apart_by_their_masks(self, overlap):
        scene = Scene(400, 400).add_ships(length=40)
        found = detect_in_tiles(for_batches(detect), scene.image, 96, overlap).pred_instances
        assert len(found) == scene.count > 200 and faults(scene, found) == NO_FAULTS

    def test_boxes_alone_are_joined_to_the_box_that_agrees_best(self):
        """The boxes of two objects overlap by 60 %, and both tiles report both objects."""
        boxes = (70, 10, 90, 30), (75, 10, 95, 30)
        starts = [window.start for window in windows(160, 96, 32)]
        samples = [
            sample_of(*((left - start, top, right - start, bottom) for left, top, right, bottom in boxes))
            for start in starts
        ]
        assert sorted(merge((96, 160), *samples).bboxes.tolist()) == [list(map(float, box)) for box in boxes]

    @pytest.mark.parametrize("missed", [0, 1])
    def test_an_object_that_another_tile_does_not_continue_is_marked_as_cut(self, missed):
        """Of an object that three tiles see in part, the middle tile or the last tile misses its part."""
        parts = [sample_of((20, 10, 96, 30)), sample_of((0, 10, 96, 30)), sample_of((0, 10, 50, 30))]
        assert merge((96, 224), *parts).cut.tolist() == [False]
        parts[1 + missed] = sample_of()
        assert merge((96, 224), *parts).cut.tolist() == [[True, True], [True]][missed]

    def test_two_arms_of_an_object_are_joined_by_the_tile_that_sees_both(self):
        """The first tile sees the arms alone, so the detector reports them as two objects."""
        scene = Scene(96, 160)
        assert scene.add(np.array([(30, 10), (140, 10), (140, 60), (30, 60), (30, 45), (120, 45), (120, 25), (30, 25)]))

        def predict(image: np.ndarray) -> DetDataSample:
            numbers = label(image[..., 0])[0]
            sample = detect(np.stack([numbers, 0 * numbers, 0 * numbers], axis=2))
            sample.pred_instances.scores = torch.rand(len(sample.pred_instances))
            return sample

        found = detect_in_tiles(for_batches(predict), scene.image, 96, 32).pred_instances
        assert len(found) == 1 and faults(scene, found) == NO_FAULTS

    @pytest.mark.parametrize("shift", [-1, 1])
    def test_an_object_on_the_seam_is_reported_once_if_tiles_disagree_on_its_centre(self, shift):
        starts = [window.start for window in windows(160, 96, 32)]
        lefts = [70 - start + (shift if start == 0 else -shift) for start in starts]
        found = merge((96, 160), *(sample_of((left, 10, left + 20, 30)) for left in lefts))
        assert len(found) == 1 and abs(found.bboxes[0, 0] - 70) == 1

    @pytest.mark.parametrize("surer", ["part", "whole"])
    def test_a_whole_object_wins_over_parts_of_any_score(self, surer):
        """An object as large as the overlap, in the corner of four tiles, an eighth of the overlap off the seam."""
        samples = []
        for rows, columns in product(windows(160, 96, 32), repeat=2):
            box = [max(68 - window.start, 0) for window in (columns, rows)]
            box += [min(100 - window.start, 96) for window in (columns, rows)]
            whole = box[2] - box[0] == box[3] - box[1] == 32
            samples.append(sample_of(box, score=0.9 if whole == (surer == "whole") else 0.5))
        assert merge((160, 160), *samples).bboxes.tolist() == [[68, 68, 100, 100]]

    @pytest.mark.parametrize("labels, count", [((0, 0), 1), ((0, 1), 2)])
    def test_only_instances_of_one_class_are_merged(self, labels, count):
        starts = [window.start for window in windows(160, 96, 32)]
        pairs = zip(starts, labels, strict=True)
        samples = [sample_of((70 - start, 10, 90 - start, 30), label=label) for start, label in pairs]
        assert len(merge((96, 160), *samples)) == count

    def test_overlapping_instances_of_one_tile_stay(self):
        boxes = [(10.0, 10.0, 30.0, 30.0), (10.0, 10.0, 30.0, 26.0)]
        assert merge((40, 40), sample_of(*boxes)).bboxes.tolist() == [list(box) for box in boxes]

    @pytest.mark.parametrize("score", [0.5, 0.95])
    def test_a_part_near_a_tile_s_edge_joins_the_other_part(self, score):
        """The first tile's box ends at 94 of 96 pixels, with its centre in the tile's interior."""
        parts = sample_of((40, 10, 94, 60), score=score), sample_of((30 - 64, 10, 200 - 64, 60), score=0.9)
        found = merge((96, 160), *parts)
        assert found.bboxes.tolist() == [[30, 10, 200, 60]] and found.cut.tolist() == [False]
        assert found.scores.tolist() == torch.tensor([max(score, 0.9)]).tolist()

    def test_masks_without_boxes_as_of_solo(self):
        scene = Scene(200, 200).add_random(30, 5, 24)
        predict = for_batches(partial(detect, with_boxes=False))
        found = detect_in_tiles(predict, scene.image, 96, 25).pred_instances
        expected = detect(scene.image).pred_instances.bboxes.tolist()
        assert sorted(found.bboxes.tolist()) == sorted(expected)

    def test_an_image_without_objects(self):
        found = detect_in_tiles(for_batches(detect), Scene(100, 100).image, 64, 16).pred_instances
        assert len(found) == 0 and found.masks == []

    @pytest.mark.slow
    def test_merging_100_000_objects_with_masks_takes_seconds(self):
        """Their boxes overlap, and a fifth of them is reported twice."""
        found = report(100_000, overlap=64)
        begin = time.process_time()
        assert len(merge_tiles(found)) == 99_856
        assert time.process_time() - begin < 40

    def test_a_model_without_instances_raises(self):
        with pytest.raises(ValueError, match="predict the whole image"):
            detect_in_tiles(for_batches(lambda image: DetDataSample()), np.zeros((10, 10, 3)), 8, 2)
