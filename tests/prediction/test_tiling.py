"""Tiles against the whole image: weights, seams, masks, and models that see a tile at a time."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from pycocotools.mask import decode, encode

from xcit_mm.prediction.tiled_detection import detect_in_tiles
from xcit_mm.prediction.tiled_segmentation import iter_segmented, segment_in_tiles
from xcit_mm.prediction.tiles import TiledImage, windows
from xcit_mm.utils.run_lengths import compress_counts, decode_crop, encode_mask, parse_counts


def each(predict: Callable) -> Callable:
    """From a function of one crop, that of a batch."""
    return lambda crops: list(map(predict, crops))


@pytest.mark.parametrize(
    ("length", "tile", "overlap"),
    [(100, 40, 10), (100, 40, 39), (30, 40, 10), (41, 40, 20), (1500, 1000, 500), (6000, 1024, 256), (7, 3, 0)],
)
def test_windows_cover_the_axis(length, tile, overlap):
    tiles = windows(length, tile, overlap)
    weights = torch.zeros(length)
    for one in tiles:
        assert one.stop - one.start == min(tile, length)
        weights[one.start : one.stop] += one.weight
    assert torch.allclose(weights, torch.ones(length), atol=1e-6)
    for left, right in pairwise(tiles):
        assert left.stop - right.start >= overlap
        assert left.interior[1] == right.interior[0]
        # No step at the seam: the next tile begins with nothing, the last one ends with nothing.
        assert right.weight[0] <= 1 / (overlap + 1) + 1e-6
        assert left.weight[-1] <= 1 / (overlap + 1) + 1e-6


@pytest.mark.parametrize(("tile", "overlap"), [(0, 0), (-5, 0), (64, 64), (64, -1)])
def test_impossible_tiles(tile, overlap):
    with pytest.raises(ValueError, match="must be 0 <= overlap < tile"):
        windows(100, tile, overlap)


def blurred(image: np.ndarray) -> torch.Tensor:
    """Class scores (C, H, W), each from a pixel and its neighbourhood, which a tile's edge cuts."""
    values = torch.from_numpy(image.copy()).permute(2, 0, 1).float()
    return torch.nn.functional.avg_pool2d(values[None], 9, 1, 4, count_include_pad=False)[0]


@pytest.mark.parametrize("shape", [(90, 150), (150, 90), (64, 200), (30, 40)])
@pytest.mark.parametrize(("tile", "overlap", "batch_size"), [(64, 16, 1), (64, 40, 4), (50, 0, 3)])
def test_segmentation_equals_the_blended_whole(shape, tile, overlap, batch_size):
    """The strips that are carried along give what accumulating all logits would."""
    image = np.random.default_rng(0).random((*shape, 3), dtype=np.float32)
    blended = torch.zeros(3, *shape)
    for rows in windows(shape[0], tile, overlap):
        for columns in windows(shape[1], tile, overlap):
            part = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            blended[(slice(None), *part)] += blurred(image[part]) * rows.weight[:, None] * columns.weight
    sizes = []

    def predict(crop: np.ndarray) -> SegDataSample:
        sizes.append(crop.shape[:2])
        return SegDataSample(seg_logits=PixelData(data=blurred(crop)))

    batches = []
    together = each(predict)
    sample = segment_in_tiles(
        lambda crops: batches.append(len(crops)) or together(crops), image, tile, overlap, batch_size=batch_size
    )
    assert 1 <= max(batches) <= batch_size and sum(batches) == len(sizes)
    top = blended.topk(2, dim=0).values
    clear = top[0] - top[1] > 1e-5
    assert clear.float().mean() > 0.99
    assert torch.equal(sample.pred_sem_seg.data[0][clear], blended.argmax(dim=0)[clear].int())
    assert set(sizes) == {(min(tile, shape[0]), min(tile, shape[1]))}


@pytest.mark.parametrize("shape", [(200, 90), (90, 200)])
@pytest.mark.parametrize(("tile", "overlap"), [(64, 16), (64, 48)])
def test_strips_are_what_they_are_among_all(shape, tile, overlap):
    """Also where so much overlaps that three tiles meet."""
    image = np.random.default_rng(0).random((*shape, 3), dtype=np.float32)

    def strips(first: int) -> list[tuple[int, torch.Tensor]]:
        def read(rows: slice, columns: slice) -> np.ndarray:
            return image[rows, columns]

        return list(iter_segmented(each(blurred), TiledImage(read, shape, tile, overlap), first=first))

    whole = strips(0)
    assert sum(len(labels) for _, labels in whole) == shape[0]
    for first in range(1, len(whole)):
        for (start, labels), (expected_start, expected) in zip(strips(first), whole[first:], strict=True):
            assert start == expected_start and torch.equal(labels, expected)


def test_tiles_with_nothing_in_them_are_not_predicted():
    """What they lack is not missed elsewhere: the rest is as if they had been predicted."""
    image = np.random.default_rng(0).random((200, 160, 3), dtype=np.float32)
    image[:110, 60:] = np.nan
    seen = []

    def read(rows: slice, columns: slice) -> np.ndarray | None:
        crop = np.nan_to_num(image[rows, columns])
        return crop if np.isfinite(image[rows, columns]).any() else None

    def predict(crop: np.ndarray) -> SegDataSample:
        seen.append(crop)
        return SegDataSample(seg_logits=PixelData(data=blurred(crop)))

    strips = iter_segmented(each(lambda crop: predict(crop).seg_logits.data), TiledImage(read, (200, 160), 64, 16))
    skipped = torch.cat([labels for _, labels in strips])
    count = len(seen)
    whole = segment_in_tiles(each(predict), np.nan_to_num(image), 64, 16).pred_sem_seg.data[0]
    assert len(seen) - count > count
    valid = torch.from_numpy(np.isfinite(image[..., 0]))
    assert torch.equal(skipped[valid], whole[valid])


def test_binary_segmentation_has_a_threshold():
    image = np.random.default_rng(0).random((60, 90, 3), dtype=np.float32)

    def predict(crop: np.ndarray) -> SegDataSample:
        return SegDataSample(seg_logits=PixelData(data=torch.from_numpy(crop[..., 0].copy())[None]))

    sample = segment_in_tiles(each(predict), image, 32, 8, threshold=0.3)
    clear = np.abs(image[..., 0] - 0.3) > 1e-5
    assert np.array_equal(sample.pred_sem_seg.data[0].numpy()[clear], (image[..., 0] > 0.3)[clear])


def box_of(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def scene(objects: int, size: tuple[int, int], largest: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """An image whose pixels hold the number of their object, ellipses of up to `largest` pixels; boxes and classes."""
    rng = np.random.default_rng(1)
    image = np.zeros((*size, 3), dtype=np.int64)
    y, x = np.mgrid[: size[0], : size[1]]
    boxes = []
    while len(boxes) < objects:
        h, w = rng.integers(5, largest + 1, 2) / 2
        cy, cx = rng.uniform(h, size[0] - h), rng.uniform(w, size[1] - w)
        inside = ((y - cy) / h) ** 2 + ((x - cx) / w) ** 2 <= 1
        if image[..., 0][inside].any() or not inside.any():
            continue
        image[inside] = len(boxes) + 1
        boxes.append(box_of(inside))
    return image, torch.tensor(boxes).float(), torch.arange(objects) % 3


def perfect_detector(labels: torch.Tensor, jitter: float):
    """Finds every object of a `scene`, and each part of one that the image cuts, as surely as a whole one."""
    rng = np.random.default_rng(2)

    def predict(image: np.ndarray) -> DetDataSample:
        masks = [image[..., 0] == number for number in np.unique(image) if number]
        boxes = np.array([box_of(mask) for mask in masks]).reshape(-1, 4) + rng.uniform(
            -jitter, jitter, (len(masks), 4)
        )
        found = InstanceData(
            bboxes=torch.from_numpy(boxes).float(),
            scores=torch.from_numpy(rng.uniform(0.5, 1, len(masks))).float(),
            labels=labels[[number - 1 for number in np.unique(image) if number]],
            masks=torch.from_numpy(np.array(masks, dtype=bool).reshape(-1, *image.shape[:2])),
        )
        return DetDataSample(pred_instances=found)

    return predict


@pytest.mark.parametrize("jitter", [0, 0.4])
@pytest.mark.parametrize("shape", [(200, 330), (330, 200)])
def test_each_object_is_found_once_and_whole(shape, jitter):
    image, boxes, labels = scene(60, shape, largest=25)
    sample = detect_in_tiles(each(perfect_detector(labels, jitter)), image, 96, 25)
    found = sample.pred_instances
    assert len(found) == 60
    assert (found.scores.diff() <= 0).all()
    numbers = set()
    for box, label, rle in zip(found.bboxes, found.labels, found.masks, strict=True):
        values = np.unique(image[..., 0][decode(rle).astype(bool)])
        assert len(values) == 1
        number = int(values[0]) - 1
        numbers.add(number)
        assert np.array_equal(decode(rle), image[..., 0] == number + 1)
        assert torch.allclose(box, boxes[number], atol=jitter)
        assert label == labels[number]
    assert len(numbers) == 60


@pytest.mark.parametrize("shift", [-1, 1])
def test_tiles_that_disagree_about_an_object_on_the_seam_report_it_once(shift):
    starts = iter(one.start for one in windows(160, 96, 32))

    def predict(crop: np.ndarray) -> DetDataSample:
        start = next(starts)
        left = 70 - start + (shift if start == 0 else -shift)  # of an object of 20 pixels in the middle of the image
        box = torch.tensor([[left, 10, left + 20, 30]]).float()
        return DetDataSample(
            pred_instances=InstanceData(bboxes=box, scores=torch.ones(1), labels=torch.zeros(1).long())
        )

    found = detect_in_tiles(each(predict), np.zeros((96, 160, 3)), 96, 32).pred_instances
    assert len(found) == 1
    assert abs(found.bboxes[0, 0] - 70) == 1


def of_boxes(*boxes: tuple[float, ...], score: float = 1.0, label: int = 0) -> DetDataSample:
    scores, labels = torch.full((len(boxes),), score), torch.full((len(boxes),), label)
    boxes = torch.tensor(boxes, dtype=torch.float)
    return DetDataSample(pred_instances=InstanceData(bboxes=boxes, scores=scores, labels=labels))


@pytest.mark.parametrize("surer", ["part", "whole"])
def test_the_whole_wins_over_the_part_that_an_edge_cuts_however_sure(surer):
    """An object as large as the overlap, in the corner of four tiles, an eighth of the overlap off the seam."""
    tiles = iter([(rows, columns) for rows in windows(160, 96, 32) for columns in windows(160, 96, 32)])

    def predict(crop: np.ndarray) -> DetDataSample:
        rows, columns = next(tiles)
        box = [
            max(68 - columns.start, 0),
            max(68 - rows.start, 0),
            min(100 - columns.start, 96),
            min(100 - rows.start, 96),
        ]
        whole = box[2] - box[0] == box[3] - box[1] == 32
        return of_boxes([float(v) for v in box], score=0.9 if whole == (surer == "whole") else 0.5)

    found = detect_in_tiles(each(predict), np.zeros((160, 160, 3)), 96, 32).pred_instances
    assert found.bboxes.tolist() == [[68, 68, 100, 100]]


def test_only_what_two_tiles_report_of_a_class_is_merged():
    overlapping = [(10.0, 10.0, 30.0, 30.0), (10.0, 10.0, 30.0, 26.0)]
    # In one tile: the model's own NMS let both pass.
    found = detect_in_tiles(lambda crops: [of_boxes(*overlapping)], np.zeros((40, 40, 3)), 96, 32).pred_instances
    assert found.bboxes.tolist() == [list(box) for box in overlapping]
    # In two tiles, at the seam: of one class they are one, of two classes two.
    for labels, count in (((0, 0), 1), ((0, 1), 2)):
        tiles = iter(zip(windows(160, 96, 32), labels, strict=True))

        def predict(crop: np.ndarray, tiles=tiles) -> DetDataSample:
            tile, label = next(tiles)
            return of_boxes((70 - tile.start, 10, 90 - tile.start, 30), label=label)

        assert len(detect_in_tiles(each(predict), np.zeros((96, 160, 3)), 96, 32).pred_instances) == count


@pytest.mark.parametrize("score, count", [(0.5, 1), (0.95, 2)])
def test_a_part_at_a_tiles_edge_goes_with_the_whole(score, count):
    """A detector draws less than it could have seen: to 94 of 96 pixels, and with its middle in the tile's share."""
    tiles = iter([of_boxes((40, 10, 94, 60), score=score), of_boxes((30 - 64, 10, 200 - 64, 60), score=0.9)])
    found = detect_in_tiles(each(lambda crop: next(tiles)), np.zeros((96, 160, 3)), 96, 32).pred_instances
    assert len(found) == count
    assert [30, 10, 200, 60] in found.bboxes.tolist()
    assert "ends" not in found


def test_masks_without_boxes():
    """As of SOLO, whose boxes are zeros."""
    image, boxes, labels = scene(30, (200, 200), largest=25)
    with_boxes = perfect_detector(labels, 0)

    def predict(crop: np.ndarray) -> DetDataSample:
        sample = with_boxes(crop)
        sample.pred_instances.bboxes.zero_()
        return sample

    found = detect_in_tiles(each(predict), image, 96, 25).pred_instances
    assert sorted(found.bboxes.tolist()) == sorted(boxes.tolist())


def test_nothing_found():
    image, _, labels = scene(1, (100, 100), largest=10)
    found = detect_in_tiles(each(perfect_detector(labels, 0)), np.zeros_like(image), 64, 16).pred_instances
    assert len(found) == 0 and found.masks == []


def test_a_model_without_instances_is_refused():
    with pytest.raises(ValueError, match="predict the whole image"):
        detect_in_tiles(each(lambda image: DetDataSample()), np.zeros((10, 10, 3)), 8, 2)


def test_masks_encode_as_in_pycocotools():
    rng = np.random.default_rng(0)
    for density in [0, 0.1, 0.5, 1] * 25:
        height, width = rng.integers(5, 60, 2)
        h, w = rng.integers(1, height + 1), rng.integers(1, width + 1)
        y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
        mask = rng.random((h, w)) < density
        full = np.zeros((height, width), np.uint8)
        full[y : y + h, x : x + w] = mask
        assert encode_mask(mask, (y, x), (int(height), int(width))) == encode(np.asfortranarray(full))


def test_run_lengths_are_written_as_by_pycocotools():
    rng = np.random.default_rng(0)
    for _ in range(50):
        mask = np.asfortranarray(rng.random((37, 90)) < rng.uniform(0, 1), np.uint8)
        code = encode(mask)["counts"]
        assert compress_counts(parse_counts(code)) == code


def test_a_mask_in_an_image_of_more_pixels_than_32_bits_count():
    mask = np.random.default_rng(0).random((20, 30)) < 0.5
    mask[[0, -1], :] = mask[:, [0, -1]] = True
    code = encode_mask(mask, (70_000, 99_000), (100_000, 100_000))
    found = decode_crop(code["counts"], 100_000, 100_000)
    assert (found.top, found.left) == (70_000, 99_000) and np.array_equal(found.mask, mask)
