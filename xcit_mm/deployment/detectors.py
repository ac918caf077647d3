"""mmdet's detectors as functions of one image that trace: image in, boxes, scores, labels and masks out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .boxes import batched_nms, candidates, decode, propose
from .operators import roi_align

__all__ = ["Detections"]


class Detections(nn.Module):
    """What mmdet's Mask R-CNN, Faster R-CNN, Cascade (Mask) R-CNN or RetinaNet detects in one image.

    All options of the config's test_cfg are honoured. The image is padded here, as mmdet's preprocessor does it, since
    proposals end where the padding begins; not with `ignore_padding`, which computes nothing for the padding.

    Args:
        model: mmdet's detector, of parts that `check_detector` knows.

    Attributes:
        score_threshold: (1,), detections of a higher score are given.
    """

    score_threshold: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.cfg: Any = model.roi_head.test_cfg if hasattr(model, "roi_head") else model.bbox_head.test_cfg
        self.register_buffer("score_threshold", torch.tensor([float(self.cfg.get("score_thr", 0))]))

        preprocessor = model.data_preprocessor
        self.divisor = 1 if getattr(model.backbone, "ignore_padding", False) else preprocessor.pad_size_divisor
        self.pad_value = float(preprocessor.pad_value)

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` returns."""
        return ["boxes", "scores", "labels"] + ["masks"] * self.model.with_mask

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Detect.

        Args:
            image: One image, normalised, (1, C, H, W).

        Returns:
            Boxes (n, 4), x1, y1, x2, y2 in pixels of `image`; scores (n,), highest first; labels (n,), int64; with a
            mask head probabilities (n, 28, 28) that the cells of a grid over the box are of the object.
        """
        height, width = image.shape[2:]
        size = (height, width)
        maps = self.model.extract_feat(self.padded(image))
        if not hasattr(self.model, "roi_head"):
            boxes, scores, labels, _ = candidates(self.model.bbox_head, maps, self.cfg, size)
            return self._best(boxes, scores, labels)
        proposals = propose(self.model.rpn_head, maps, size)
        roi_head = self.model.roi_head
        detected = self._best(*_classified(roi_head, maps, proposals, size))
        if not roi_head.with_mask:
            return detected
        boxes, _, labels = detected
        return (*detected, _masks(roi_head, maps, boxes, labels))

    def padded(self, image: Tensor) -> Tensor:
        """The image (1, C, H, W) with its sides padded to a multiple of the preprocessor's divisor."""
        height, width = image.shape[2:]
        return F.pad(image, (0, -width % self.divisor, 0, -height % self.divisor), value=self.pad_value)

    def _best(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        iou_threshold, most = self.cfg.nms.iou_threshold, self.cfg.max_per_img
        kept = batched_nms(boxes, scores, labels, iou_threshold, self.score_threshold, most)
        return boxes[kept], scores[kept], labels[kept]


def _stages(part: Any) -> list[Any]:
    """The stages of a cascade's part, or the one part of another head."""
    return list(part) if isinstance(part, nn.ModuleList) else [part]


def _of_class(values: Tensor, labels: Tensor) -> Tensor:
    """Of values for each class (n, classes, ...) those of the labels (n,)."""
    return values[torch.arange(labels.shape[0], device=labels.device), labels]


def _pool(extractor: Any, maps: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """Features (n, C, size, size) of boxes (n, 4)."""
    layers = extractor.roi_layers
    levels = extractor.map_roi_levels(F.pad(boxes, (1, 0)), len(layers))  # mmdet's boxes begin with the image's number
    scales = [layer.spatial_scale for layer in layers]
    return roi_align(
        list(maps[: len(layers)]), boxes, levels, scales, layers[0].output_size[0], layers[0].sampling_ratio
    )


def _classified(
    roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, scores and labels of each pair of proposal (n, 4) and class: (n * classes, 4), (n * classes,) twice."""
    extractors, heads = _stages(roi_head.bbox_roi_extractor), _stages(roi_head.bbox_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits, deltas = head(_pool(extractor, maps, boxes))
        deltas = deltas.unflatten(1, (-1, 4))  # n, classes or 1, 4
        total = total + logits
        if head is not heads[-1]:
            own = deltas[:, 0] if head.reg_class_agnostic else _of_class(deltas, logits[:, :-1].argmax(dim=1))
            boxes = decode(boxes, own, head.bbox_coder, size)
    classes = head.num_classes
    scores = (total / len(heads)).softmax(dim=1)[:, :classes]
    each = boxes[:, None].expand(-1, deltas.shape[1], -1).reshape(-1, 4)
    boxes = decode(each, deltas.reshape(-1, 4), head.bbox_coder, size)
    if head.reg_class_agnostic:
        boxes = boxes[:, None].expand(-1, classes, -1).reshape(-1, 4)
    labels = torch.arange(classes, device=boxes.device).expand_as(scores)
    return boxes, scores.reshape(-1), labels.reshape(-1)


def _masks(roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
    """Probabilities (n, 28, 28) for the classes of boxes (n, 4)."""
    extractors, heads = _stages(roi_head.mask_roi_extractor), _stages(roi_head.mask_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits = head(_pool(extractor, maps, boxes))
        logits = logits[:, 0] if head.class_agnostic else _of_class(logits, labels)
        total = total + logits.sigmoid()
    return total / len(heads)
