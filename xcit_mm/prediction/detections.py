"""mmdet's instances as supervision's detections."""

import numpy as np
import supervision as sv
import torch
from mmengine.structures import InstanceData

from .masks import to_compact


def to_detections(instances: InstanceData, size: tuple[int, int]) -> sv.Detections:
    """Return instances in descending order of scores, which not all heads ensure.

    Args:
        instances: Their masks are a tensor (n, H, W) or a list of `Crop`.
        size: Height and width of the image.
    """
    from mmdet.structures.mask import mask2bbox

    instances = instances.cpu()
    masks = instances.get("masks")
    if isinstance(masks, torch.Tensor) and not instances.bboxes.any():  # SOLO predicts no boxes
        instances.bboxes = mask2bbox(masks)
    arrays = instances.numpy()
    arrays = arrays[np.argsort(-arrays.scores, kind="stable")]
    masks = arrays.get("masks")
    if isinstance(masks, list):
        masks = to_compact(masks, size)
    elif masks is not None:  # without objects, SOLO's masks and labels are floats
        masks = masks.astype(bool, copy=False)
    return sv.Detections(arrays.bboxes, masks, arrays.scores, arrays.labels.astype(int))
