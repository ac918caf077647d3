"""Prediction of images too large for one pass: in overlapping tiles, with memory bounded by the tile."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor

__all__ = [
    "Read",
    "Window",
    "check_tile",
    "detect_in_tiles",
    "detected_in",
    "encode_mask",
    "merge_tiles",
    "run_length_text",
    "segment_in_tiles",
    "segmented_strips",
    "windows",
]

Predict = Callable[[list[np.ndarray]], list[BaseDataElement]]
"""From images of one size, as many as a batch holds at most, to a sample each."""

Read = Callable[[slice, slice], np.ndarray | None]
"""From rows and columns to the image there (h, w, C), or None where there is nothing to predict."""

# Of the overlap: how far beyond its share a tile looks, since neighbours may disagree on where an object's middle is.
_MARGIN = 1 / 8
# From this overlap on what two tiles report is one object.
_SAME = 0.5


class Window(NamedTuple):
    """A tile along one axis of an image, in pixels.

    Attributes:
        start: First pixel.
        stop: The one after the last.
        own: From where to where no other tile's middle is nearer: the share of this tile.
        margin: How much of the neighbours' shares to look into, on each side.
        weight: Of each pixel, (stop - start,); the weights of all tiles on a pixel sum to 1.
    """

    start: int
    stop: int
    own: tuple[float, float]
    margin: float
    weight: Tensor


def windows(length: int, tile: int, overlap: int) -> list[Window]:
    """Tiles of `tile` pixels, spread evenly over `length` pixels, that overlap by at least `overlap`.

    A shorter axis is one tile. Weights fall linearly to a tile's edge where it has a neighbour.

    Raises:
        ValueError: If the tile is not positive or the overlap not between 0 and the tile.
    """
    check_tile(tile, overlap)
    tile = min(tile, length)
    count = 1 if length == tile else -((overlap - length) // (tile - overlap))
    starts = [round(number * (length - tile) / max(count - 1, 1)) for number in range(count)]
    shared = [left + tile - right for left, right in pairwise(starts)]
    ramps = torch.ones(count, tile, dtype=torch.float64)
    sums = torch.zeros(length, dtype=torch.float64)
    for number, start in enumerate(starts):
        if number > 0:
            ramps[number] *= _ramp(tile, shared[number - 1])
        if number < count - 1:
            ramps[number] *= _ramp(tile, shared[number]).flip(0)
        sums[start : start + tile] += ramps[number]
    seams = [-torch.inf, *((left + tile + right) / 2 for left, right in pairwise(starts)), torch.inf]
    return [
        Window(
            start,
            start + tile,
            (seams[number], seams[number + 1]),
            _MARGIN * min(shared, default=0),
            (ramps[number] / sums[start : start + tile]).float(),
        )
        for number, start in enumerate(starts)
    ]


def check_tile(tile: int, overlap: int) -> None:
    """Raise ValueError if the tile is not positive or the overlap not between 0 and the tile."""
    if not 0 <= overlap < tile:
        raise ValueError(f"tiles of {tile} pixels with an overlap of {overlap}: must be 0 <= overlap < tile")


def _ramp(tile: int, shared: int) -> Tensor:
    """Weights that rise over the first `shared` pixels."""
    return ((torch.arange(tile, dtype=torch.float64) + 0.5) / max(shared, 0.5)).clamp(max=1)


def segment_in_tiles(
    predict: Predict,
    image: np.ndarray,
    tile: int,
    overlap: int,
    threshold: float | None = None,
    batch_size: int = 1,
) -> BaseDataElement:
    """A segmentor's segmentation map, from logits blended where tiles overlap; see `segmented_strips`.

    Args:
        predict: From images to SegDataSamples with `seg_logits`.
        image: (H, W, 3).
        tile: Side of a tile, in pixels.
        overlap: Least overlap of neighbours, in pixels.
        threshold: Of a segmentor of one channel, the probability from which a pixel is of class 1.
        batch_size: Tiles to predict at a time.

    Returns:
        A SegDataSample with `pred_sem_seg` (1, H, W), without `seg_logits`.
    """
    from mmseg.structures import SegDataSample

    shape = image.shape[:2]
    strips = segmented_strips(predict, _reader(image), shape, tile, overlap, threshold, batch_size)
    labels = torch.cat([strip for _, strip in strips])
    sample = SegDataSample(metainfo=dict(ori_shape=shape, img_shape=shape))
    sample.pred_sem_seg = PixelData(data=(labels if shape[0] >= shape[1] else labels.T)[None])
    return sample


def segmented_strips(
    predict: Predict,
    read: Read,
    shape: tuple[int, int],
    tile: int,
    overlap: int,
    threshold: float | None = None,
    batch_size: int = 1,
    first: int = 0,
    by_rows: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """A segmentor's classes in strips across the longer side, from logits blended where tiles overlap.

    Of the logits only those of the tiles of a batch are held, and of one strip as wide as the overlap along the
    shorter side.

    Args:
        predict: From images to SegDataSamples with `seg_logits`.
        read: Gives the tiles.
        shape: Height and width of the whole.
        tile: Side of a tile, in pixels.
        overlap: Least overlap of neighbours, in pixels.
        threshold: Of a segmentor of one channel, the probability from which a pixel is of class 1.
        batch_size: Tiles to predict at a time.
        first: The strip to begin with. What reaches into it from those before is predicted for that alone, so that
            it is what it is among all.
        by_rows: Let strips be rows, whichever side is longer.

    Yields:
        Where the strip begins along the longer side, and its classes (n, shorter side), int32; 0 where there is
        nothing to predict.
    """
    upright = by_rows or shape[0] >= shape[1]
    length, width = shape if upright else shape[::-1]
    longs, shorts = windows(length, tile, overlap), windows(width, tile, overlap)
    next_longs, next_shorts = _next_starts(longs), _next_starts(shorts)
    begin = next(number for number, one in enumerate(longs) if one.stop > longs[first].start)
    # Tiles go along the shorter axis first. `across` holds what the rows before leave to the next one,
    # `ahead` what the tile before leaves to the next one; (C, long, short) both.
    across: dict[int, Tensor] = {}
    for number in range(begin, len(longs)):
        long, next_long = longs[number], next_longs[number]
        ahead = None
        below: dict[int, Tensor] = {}
        labels = torch.zeros(next_long - long.start, width, dtype=torch.int32)
        order = [(long, short) if upright else (short, long) for short in shorts]
        samples = _predicted(predict, read, order, batch_size)
        for short, next_short, (rows, columns, sample) in zip(shorts, next_shorts, samples, strict=True):
            before = ahead, across.pop(short.start, None)
            if sample is None:  # what others leave lies within it, where there is nothing
                ahead = None
                continue
            logits = sample.seg_logits.data
            logits *= rows.weight.to(logits)[:, None] * columns.weight.to(logits)
            logits = logits if upright else logits.transpose(1, 2)
            for strip in before:
                if strip is not None:
                    logits[:, : strip.shape[1], : strip.shape[2]] += strip
            done_long, done_short = next_long - long.start, next_short - short.start
            ahead = logits[:, :, done_short:].clone() if next_short < short.stop else None
            below[short.start] = logits[:, done_long:, :done_short].clone()
            done = logits[:, :done_long, :done_short]
            labels[:, short.start : next_short] = done.argmax(dim=0) if len(done) > 1 else done[0] > threshold
        across = below
        if number >= first:
            yield long.start, labels


def _reader(image: np.ndarray) -> Read:
    return lambda rows, columns: image[rows, columns]


def _predicted(
    predict: Predict, read: Read, tiles: list[tuple[Window, Window]], batch_size: int
) -> Iterator[tuple[Window, Window, BaseDataElement | None]]:
    """Tiles (rows, columns) with their predictions, in their order; None where there is nothing to predict."""
    for first in range(0, len(tiles), batch_size):
        batch = tiles[first : first + batch_size]
        crops = [read(slice(rows.start, rows.stop), slice(columns.start, columns.stop)) for rows, columns in batch]
        there = [crop for crop in crops if crop is not None]
        samples = iter(predict(there) if there else [])
        for (rows, columns), crop in zip(batch, crops, strict=True):
            yield rows, columns, None if crop is None else next(samples)


def _next_starts(tiles: list[Window]) -> list[int]:
    return [one.start for one in tiles[1:]] + [tiles[-1].stop]


def detect_in_tiles(
    predict: Predict, image: np.ndarray, tile: int, overlap: int, batch_size: int = 1
) -> BaseDataElement:
    """A detector's boxes, and masks if it has them, with those that several tiles report merged by NMS.

    A tile reports what has its centre in the tile's share of the image, or close by if the tile's edge does not
    cut it. A part of an object not larger than the overlap has its centre in the share of a tile that sees the
    object whole, and is left to it. Larger objects may be whole in no tile and reported in parts; of these, and
    of what ends near a tile's edge, those go that lie mostly within a better one of another tile.

    Args:
        predict: From images to DetDataSamples with `pred_instances`.
        image: (H, W, 3).
        tile: Side of a tile, in pixels.
        overlap: Least overlap of neighbours, in pixels; at least the size of the objects.
        batch_size: Tiles to predict at a time.

    Returns:
        A DetDataSample with `pred_instances`, best first, on the CPU: bboxes (n, 4), scores (n,), labels (n,), and
        masks as a list of n in COCO's run-length code.

    Raises:
        ValueError: If the model predicts no instances.
    """
    from mmdet.structures import DetDataSample

    shape = image.shape[:2]
    tiles = list(product(windows(shape[0], tile, overlap), windows(shape[1], tile, overlap)))
    found = list(detected_in(tiles, predict, _reader(image), shape, batch_size))
    sample = DetDataSample(metainfo=dict(ori_shape=shape, img_shape=shape))
    sample.pred_instances = merge_tiles(found)
    return sample


def detected_in(
    tiles: list[tuple[Window, Window]], predict: Predict, read: Read, shape: tuple[int, int], batch_size: int
) -> Iterator[InstanceData]:
    """What a detector reports in tiles (rows, columns) of an image of `shape`, in its pixels, to be merged.

    Raises:
        ValueError: If the model predicts no instances.
    """
    for rows, columns, sample in _predicted(predict, read, tiles, batch_size):
        if sample is None:
            continue
        if "pred_instances" not in sample:
            raise ValueError("the model predicts no instances to merge from tiles: predict the whole image")
        yield _owned(sample.pred_instances.cpu(), rows, columns, shape)


def _owned(found: InstanceData, rows: Window, columns: Window, shape: tuple[int, int]) -> InstanceData:
    """The instances that a tile reports, in the image's pixels."""
    from mmdet.structures.mask import mask2bbox

    boxes = found.bboxes
    if "masks" in found and not boxes.any():  # as of SOLO, which has no boxes
        boxes = mask2bbox(found.masks)
    boxes = boxes + torch.tensor([columns.start, rows.start] * 2)
    left, top, right, bottom = boxes.T
    keep = _reported(left, right, columns) & _reported(top, bottom, rows)
    ends = (_ends_at_edge(left, right, columns) | _ends_at_edge(top, bottom, rows))[keep]
    owned = InstanceData(bboxes=boxes[keep], scores=found.scores[keep], labels=found.labels[keep], ends=ends)
    if "masks" in found:
        owned.masks = [encode_mask(mask, (rows.start, columns.start), shape) for mask in found.masks[keep].numpy()]
    return owned


def _reported(low: Tensor, high: Tensor, tile: Window) -> Tensor:
    centre = (low + high) / 2
    before, after = centre < tile.own[0], centre > tile.own[1]
    near = (centre >= tile.own[0] - tile.margin) & (centre <= tile.own[1] + tile.margin)
    return near & ~(before & (low <= tile.start + 1)) & ~(after & (high >= tile.stop - 1))


def _ends_at_edge(low: Tensor, high: Tensor, tile: Window) -> Tensor:
    """Whether a detector that saw more than the tile might have drawn a larger box."""
    at_start = (low <= tile.start + tile.margin) & (tile.own[0] > -torch.inf)
    return at_start | (high >= tile.stop - tile.margin) & (tile.own[1] < torch.inf)


def merge_tiles(found: list[InstanceData]) -> InstanceData:
    """The instances of all tiles, best first, less those that overlap a better one of their class in another tile.

    What overlaps within a tile stays: the model's own test_cfg has decided on it.
    """
    from mmdet.structures.bbox import bbox_overlaps

    merged = InstanceData.cat(found)
    origin = torch.arange(len(found)).repeat_interleave(torch.tensor([len(one) for one in found]))
    order = merged.scores.argsort(descending=True, stable=True)
    merged, tiles = merged[order], origin[order].tolist()
    boxes, ends = merged.bboxes.float(), merged.pop("ends").tolist()
    # Of those that are kept, by class and cell of a grid: what overlaps is in the same cell or one next to it.
    side = max((boxes[:, 2:] - boxes[:, :2]).max().item(), 1) if len(boxes) else 1
    cells = ((boxes[:, :2] + boxes[:, 2:]) / (2 * side)).long().tolist()
    kept: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    keep = torch.zeros(len(merged), dtype=torch.bool)
    for number, (label, (x, y)) in enumerate(zip(merged.labels.tolist(), cells, strict=True)):
        near = [one for dx, dy in product((-1, 0, 1), repeat=2) for one in kept.get((label, x + dx, y + dy), ())]
        rivals = [one for one in near if tiles[one] != tiles[number]]
        # A part covers little of the whole: what counts is how much of itself is covered.
        measure = "iof" if ends[number] else "iou"
        if not rivals or not (bbox_overlaps(boxes[number, None], boxes[rivals], measure) > _SAME).any():
            keep[number] = True
            kept[label, x, y].append(number)
    return merged[keep]


def encode_mask(mask: np.ndarray, corner: tuple[int, int], shape: tuple[int, int]) -> dict:
    """COCO's run-length code of a mask (h, w) that lies at `corner` (y, x) of an image of `shape` (H, W)."""
    from pycocotools.mask import frPyObjects

    height, width = shape
    columns = np.flatnonzero(mask.any(axis=0))
    first, last = (columns[0], columns[-1] + 1) if len(columns) else (0, 0)
    # COCO counts down the columns; only those of the mask are laid out.
    strip = np.zeros((last - first, height), dtype=bool)
    strip[:, corner[0] : corner[0] + mask.shape[0]] = mask[:, first:last].T
    changes = np.flatnonzero(np.diff(strip.ravel(), prepend=False, append=False)) + (corner[1] + first) * height
    counts = np.diff([0, *changes[changes < height * width], height * width])
    if height * width >= 2**32:  # pycocotools counts pixels in 32 bits
        return dict(size=[height, width], counts=run_length_text(counts))
    return frPyObjects(dict(size=[height, width], counts=counts.tolist()), height, width)


def run_length_text(counts: Iterable[int]) -> bytes:
    """COCO's code of run lengths, as pycocotools writes it, of images of any size."""
    letters = bytearray()
    before = [0, 0, 0]
    for number, count in enumerate(map(int, counts)):
        # From the fourth on, differences to the last but one; five bits a letter, lowest first, the sixth for more.
        rest = count - before[1] if number > 2 else count
        before = [*before[1:], count]
        while True:
            bits, rest = rest & 31, rest >> 5
            more = rest != (-1 if bits & 16 else 0)
            letters.append(48 + bits + 32 * more)
            if not more:
                break
    return bytes(letters)
