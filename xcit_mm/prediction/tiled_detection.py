"""Instances of images too large for one pass, merged where several tiles report the same object."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor

from ..utils.run_lengths import encode_mask
from .results import instance_boxes
from .tiles import PredictBatch, TiledImage, Window

__all__ = ["detect_in_tiles", "iter_detected", "merge_tiles"]


def detect_in_tiles(
    predict: PredictBatch, image: np.ndarray, tile: int, overlap: int, batch_size: int = 1
) -> BaseDataElement:
    """Detect instances in tiles, and merge by NMS those that several tiles report.

    A tile reports the objects whose centre lies in the tile's interior, or close to it if the tile's edge does not cut
    the object. The centre of an object not larger than the overlap lies in the interior of a tile that contains the
    whole object, so parts of the object in other tiles are ignored. Larger objects may be whole in no tile and be
    reported in parts. Of these parts, and of objects that end near a tile's edge, those are removed that lie mostly
    within a better instance of another tile.

    Args:
        predict: Function from images to DetDataSamples with `pred_instances`.
        image: (H, W, 3).
        tile: Side of a tile, in pixels.
        overlap: Minimum overlap of neighbouring tiles, in pixels; at least the size of the objects.
        batch_size: Number of tiles to predict together.

    Returns:
        A DetDataSample with `pred_instances` on the CPU, in descending order of scores: bboxes (n, 4), scores (n,),
        labels (n,), and for models with masks a list of n masks in COCO's run-length code.

    Raises:
        ValueError: If the model predicts no instances, or the tile and the overlap are invalid.
    """
    from mmdet.structures import DetDataSample

    shape = image.shape[:2]
    tiled = TiledImage(lambda rows, columns: image[rows, columns], shape, tile, overlap)
    found = merge_tiles(list(iter_detected(predict, tiled, range(len(tiled.rows)), batch_size)))
    return DetDataSample(metainfo=dict(ori_shape=shape, img_shape=shape), pred_instances=found)


def iter_detected(predict: PredictBatch, image: TiledImage, rows: range, batch_size: int) -> Iterator[InstanceData]:
    """Yield the instances that each tile of some rows of tiles reports, in pixels of the image."""
    tiles = list(product(image.rows[rows.start : rows.stop], image.columns))
    for tile, sample in zip(tiles, image.iter_predicted(predict, tiles, batch_size), strict=True):
        if sample is None:
            continue
        if "pred_instances" not in sample:
            raise ValueError("the model predicts no instances to merge from tiles: predict the whole image")
        yield _reported_instances(sample.pred_instances.cpu(), *tile, image.shape)


def _reported_instances(found: InstanceData, rows: Window, columns: Window, shape: tuple[int, int]) -> InstanceData:
    """Select the instances that a tile reports, in pixels of the image, and mark those that its edge may have cut."""
    boxes = instance_boxes(found) + torch.tensor([columns.start, rows.start] * 2)
    left, top, right, bottom = boxes.T
    keep = _is_reported(left, right, columns) & _is_reported(top, bottom, rows)
    ends = (_ends_at_edge(left, right, columns) | _ends_at_edge(top, bottom, rows))[keep]
    reported = InstanceData(bboxes=boxes[keep], scores=found.scores[keep], labels=found.labels[keep], ends=ends)
    if "masks" in found:
        masks = found.masks[keep].numpy()
        reported.masks = [encode_mask(mask, (rows.start, columns.start), shape) for mask in masks]
    return reported


def _is_reported(low: Tensor, high: Tensor, window: Window) -> Tensor:
    centre, (start, stop) = (low + high) / 2, window.interior
    near = (centre >= start - window.margin) & (centre <= stop + window.margin)
    cut = ((centre < start) & (low <= window.start + 1)) | ((centre > stop) & (high >= window.stop - 1))
    return near & ~cut


def _ends_at_edge(low: Tensor, high: Tensor, window: Window) -> Tensor:
    """Return whether a detector that saw more than the tile might have drawn a larger box."""
    start, stop = window.interior
    at_start = (low <= window.start + window.margin) & (start > -torch.inf)
    return at_start | (high >= window.stop - window.margin) & (stop < torch.inf)


def merge_tiles(found: list[InstanceData]) -> InstanceData:
    """Merge the instances of tiles, from `iter_detected`, into one list in descending order of scores.

    Instances that overlap a better instance of their class in another tile are dropped. Overlapping instances of the
    same tile stay, because the model's own test_cfg has selected them.
    """
    from mmdet.structures.bbox import bbox_overlaps

    nothing = InstanceData(bboxes=torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0).long())
    nothing.ends = torch.zeros(0, dtype=torch.bool)
    found = found or [nothing]
    merged = InstanceData.cat(found)
    origin = torch.arange(len(found)).repeat_interleave(torch.tensor([len(instances) for instances in found]))
    order = merged.scores.argsort(descending=True, stable=True)
    merged, tiles = merged[order], origin[order].tolist()
    boxes, ends = merged.bboxes.float(), merged.pop("ends").tolist()
    # Kept instances by class and cell of a grid. Overlapping boxes lie in the same cell or in neighbouring cells.
    side = max((boxes[:, 2:] - boxes[:, :2]).max().item(), 1) if len(boxes) else 1
    cells = ((boxes[:, :2] + boxes[:, 2:]) / (2 * side)).long().tolist()
    kept: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    keep = torch.zeros(len(merged), dtype=torch.bool)
    for number, (label, (x, y)) in enumerate(zip(merged.labels.tolist(), cells, strict=True)):
        near = (kept.get((label, x + dx, y + dy), ()) for dx, dy in product((-1, 0, 1), repeat=2))
        rivals = [rival for cell in near for rival in cell if tiles[rival] != tiles[number]]
        # A part covers little of the whole object, so the covered share of the part decides.
        measure = "iof" if ends[number] else "iou"
        if not rivals or not (bbox_overlaps(boxes[number, None], boxes[rivals], measure) > 0.5).any():
            keep[number] = True
            kept[label, x, y].append(number)
    return merged[keep]
