"""Masks as arrays and in the memory of their boxes, and mmdet's instances as supervision's
detections.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import supervision as sv
from mmengine.structures import InstanceData


class Crop(NamedTuple):
    """A mask in the part of the image that holds its object.

    Attributes:
        left, top: Position in the image, in pixels.
        mask: (h, w), bool.
    """

    left: int
    top: int
    mask: np.ndarray


def crop_of(masks: np.ndarray | sv.CompactMask, number: int) -> Crop:
    """Return a mask of an array (n, H, W), whole, or of compact masks, in its box."""
    if isinstance(masks, np.ndarray):
        return Crop(0, 0, masks[number])
    left, top = masks.offsets[number].tolist()
    return Crop(left, top, masks.crop(number))


def to_compact(crops: Iterable[Crop], size: tuple[int, int]) -> sv.CompactMask:
    """Return crops as the masks of an image of this height and width."""
    no_corners = np.zeros((0, 2), np.int32)
    masks = [sv.CompactMask([], no_corners, no_corners, size)]
    for left, top, mask in crops:
        height, width = mask.shape
        box = np.array([[0, 0, width - 1, height - 1]])
        crop = sv.CompactMask.from_dense(mask[None], box, mask.shape)
        masks.append(crop.with_offset(left, top, size))
    return sv.CompactMask.merge(masks)


def to_detections(instances: InstanceData) -> sv.Detections:
    """Return instances in descending order of scores, which not all heads ensure."""
    from mmdet.structures.mask import mask2bbox

    instances = instances.cpu()
    masks = instances.get("masks")
    if masks is not None and not instances.bboxes.any():  # SOLO predicts no boxes
        instances.bboxes = mask2bbox(masks)
    arrays = instances.numpy()
    arrays = arrays[np.argsort(-arrays.scores, kind="stable")]
    masks = arrays.get("masks")
    if masks is not None:  # without objects, SOLO's masks and labels are floats
        masks = masks.astype(bool, copy=False)
    return sv.Detections(arrays.bboxes, masks, arrays.scores, arrays.labels.astype(int))
