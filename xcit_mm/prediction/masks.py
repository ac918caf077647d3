"""mmdet's instances as supervision's detections, with masks in the memory of their boxes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

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


def to_detections(instances: InstanceData, size: tuple[int, int]) -> sv.Detections:
    """Return instances in an image of this height and width, in descending order of scores, which
    not all heads ensure, with compact masks.
    """
    from mmdet.structures.mask import mask2bbox

    instances = instances.cpu()
    boxes = instances.bboxes
    masks = instances.get("masks")
    if masks is not None:
        masks = masks.bool()  # without objects, SOLO's masks and labels are floats
        enclosing = mask2bbox(masks)
        if not boxes.any():  # SOLO predicts no boxes
            boxes = enclosing
        masks = sv.CompactMask.from_dense(masks.numpy(), enclosing.numpy(), size)
    scores = instances.scores.numpy()
    labels = instances.labels.long().numpy()
    detections: Any = sv.Detections(boxes.numpy(), masks, scores, labels)
    return detections[np.argsort(-scores, kind="stable")]
