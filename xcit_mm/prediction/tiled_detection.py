"""Instances of images too large for one pass, merged where several tiles report the same object."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor

from ..utils.run_lengths import encode_mask
from .joining import SIDES, merge_tiles
from .results import instance_boxes
from .tiles import PredictBatch, TiledImage, Window


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
    """Select the instances that a tile reports, in pixels of the image, with the tile and the sides that may be cut."""
    boxes = instance_boxes(found) + torch.tensor([columns.start, rows.start] * 2)
    left, top, right, bottom = boxes.T
    keep = _is_reported(left, right, columns) & _is_reported(top, bottom, rows)
    (at_left, at_right), (at_top, at_bottom) = _near_edges(left, right, columns), _near_edges(top, bottom, rows)
    sides = torch.stack([at_left, at_top, at_right, at_bottom], dim=1)[keep] * torch.tensor(SIDES)
    reported = InstanceData(bboxes=boxes[keep], scores=found.scores[keep], labels=found.labels[keep])
    reported.sides = sides.sum(dim=1)
    reported.tiles = torch.tensor([columns.start, rows.start, columns.stop, rows.stop]).repeat(len(reported.scores), 1)
    if "masks" in found:
        masks = found.masks[keep].numpy()
        reported.masks = [encode_mask(mask, (rows.start, columns.start), shape) for mask in masks]
    return reported


def _is_reported(low: Tensor, high: Tensor, window: Window) -> Tensor:
    centre, (start, stop) = (low + high) / 2, window.interior
    near = (centre >= start - window.margin) & (centre <= stop + window.margin)
    cut = ((centre < start) & (low <= window.start + 1)) | ((centre > stop) & (high >= window.stop - 1))
    return near & ~cut


def _near_edges(low: Tensor, high: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return whether a detector that saw more than the tile might have drawn a larger box, at each end of an axis."""
    start, stop = window.interior
    at_start = (low <= window.start + window.margin) & (start > -torch.inf)
    return at_start, (high >= window.stop - window.margin) & (stop < torch.inf)
