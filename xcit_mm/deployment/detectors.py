"""mmdet's detectors as traceable functions of images."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operators import nms, roi_align
from .traceable import list_stages

MAX_LOG_RATIO = 4.135166556742356  # |log(16 / 1000)|, the limit of scaling a side


class ExportableDetector(nn.Module):
    """Detect objects as mmdet does, with the options in the model's test_cfg.

    These are `score_thr`, `nms_pre`, `min_bbox_size`, `max_per_img`, and `iou_threshold` in `nms`.

    The module pads images itself, because mmdet clips proposals to the image without its padding.

    Args:
        model: mmdet's Mask R-CNN, Faster R-CNN, Cascade (Mask) R-CNN or RetinaNet, which
            `check_types` has accepted.

    Attributes:
        outputs: Names of the outputs.
        score_thr: Detections have higher scores than this, (1, 1). It is a buffer, so that a file
            has a name for it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.cfg: Any = test_cfg_of(model)
        self.score_thr: Tensor
        self.register_buffer("score_thr", torch.tensor([[float(self.cfg.get("score_thr", 0))]]))
        self.divisor: int = model.data_preprocessor.pad_size_divisor
        self.pad_value = float(model.data_preprocessor.pad_value)
        self.outputs = ["boxes", "scores", "labels", "images"]
        if model.with_mask:
            self.outputs.append("masks")

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Detect objects in normalised images (B, C, H, W).

        Returns:
            Boxes (n, 4), x1, y1, x2, y2 in pixels of `image`; scores (n,), highest of an image
            first; labels (n,); indices of the images (n,), ascending; with a mask head
            probabilities (n, 28, 28) of the cells of a grid over the box.
        """
        height, width = image.shape[2:]
        size = height, width
        padding = (0, -width % self.divisor, 0, -height % self.divisor)
        maps = self.model.extract_feat(F.pad(image, padding, value=self.pad_value))
        if not hasattr(self.model, "roi_head"):
            boxes, scores, labels, _ = find_candidates(self.model.bbox_head, maps, self.cfg, size)
            return self._select_detected(boxes, scores, labels)
        rpn_head = self.model.rpn_head
        boxes, scores, _, levels = find_candidates(rpn_head, maps, rpn_head.test_cfg, size)
        proposals, _, _, images = select_by_nms(boxes, scores, levels, rpn_head.test_cfg)
        roi_head = self.model.roi_head
        boxes, scores, labels = _classify(roi_head, maps, proposals, images, size)
        # Each image has the candidates of all images. Those from other images have a score of -1.
        number = torch.arange(image.shape[0], device=image.device)[:, None, None]
        scores = scores.where(images[:, None] == number, -1.0).flatten(1)
        boxes = boxes.flatten(0, 1).expand(image.shape[0], -1, -1)
        detected = self._select_detected(boxes, scores, labels.flatten().expand(image.shape[0], -1))
        if not roi_head.with_mask:
            return detected
        boxes, _, labels, images = detected
        return (*detected, _predict_masks(roi_head, maps, boxes, images, labels))

    def _select_detected(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Select by score and NMS: boxes, scores, labels and indices of images."""
        is_detected = scores > self.score_thr
        return select_by_nms(boxes, scores.where(is_detected, -1.0), labels, self.cfg)


def test_cfg_of(model: Any) -> Any:
    """Return the options by which a detector of mmdet selects its objects."""
    head = model.roi_head if hasattr(model, "roi_head") else model.bbox_head
    return head.test_cfg


def _of_class(outputs: Tensor, labels: Tensor) -> Tensor:
    """Select the outputs for the labels (n,) from those for all classes (n, classes, ...)."""
    return outputs[torch.arange(labels.shape[0], device=labels.device), labels]


def _pool(extractor: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor) -> Tensor:
    """Pool features (n, C, size, size) of boxes (n, 4) in images (n,).

    Each box is pooled from the level that mmdet chooses by the size of the box.
    """
    layers = extractor.roi_layers
    rois = F.pad(boxes, (1, 0))  # mmdet puts the image's index before the box
    levels = extractor.map_roi_levels(rois, len(layers))
    size = layers[0].output_size[0]
    pooled = boxes.new_zeros(boxes.shape[0], maps[0].shape[1], size, size)
    for level, layer in enumerate(layers):
        index = (levels == level).nonzero()[:, 0]
        options = layer.spatial_scale, size, layer.sampling_ratio
        features = roi_align(maps[level], boxes[index], images[index], *options)
        pooled = pooled.index_put((index,), features)
    return pooled


def _classify(
    roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Classify proposals (n, 4) in images (n,).

    In a cascade each stage refines the boxes, and the mean logits give the scores.

    Returns:
        Boxes (n, classes, 4), scores and labels (n, classes).
    """
    extractors = list_stages(roi_head.bbox_roi_extractor)
    heads = list_stages(roi_head.bbox_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits, deltas = head(_pool(extractor, maps, boxes, images))
        deltas = deltas.unflatten(1, (-1, 4))  # n, classes or 1, 4
        total = total + logits
        if head is not heads[-1]:
            best = logits[:, :-1].argmax(dim=1)
            refinement = deltas[:, 0] if head.reg_class_agnostic else _of_class(deltas, best)
            boxes = decode(boxes, refinement, head.bbox_coder, size)
    classes = head.num_classes
    scores = (total / len(heads)).softmax(dim=1)[:, :classes]
    boxes = decode(boxes[:, None], deltas, head.bbox_coder, size).expand(-1, classes, -1)
    return boxes, scores, torch.arange(classes, device=boxes.device).expand_as(scores)


def _predict_masks(
    roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor, labels: Tensor
) -> Tensor:
    """Compute mask probabilities (n, 28, 28) of boxes (n, 4) with labels (n,), in images (n,).

    In a cascade they are the mean of the stages.
    """
    extractors = list_stages(roi_head.mask_roi_extractor)
    heads = list_stages(roi_head.mask_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits = head(_pool(extractor, maps, boxes, images))
        logits = logits[:, 0] if head.class_agnostic else _of_class(logits, labels)
        total = total + logits.sigmoid()
    return total / len(heads)


def decode(anchors: Tensor, deltas: Tensor, coder: Any, size: tuple[int, int]) -> Tensor:
    """Decode boxes (..., 4) from anchors and deltas (..., 4) as mmdet's DeltaXYWHBBoxCoder."""
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    low = anchors[..., :2]
    high = anchors[..., 2:]
    center = (low + high) * 0.5 + (high - low) * deltas[..., :2]
    half = (high - low) * deltas[..., 2:].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * 0.5
    x1, y1, x2, y2 = torch.cat([center - half, center + half], dim=-1).unbind(-1)
    height, width = size
    return torch.stack(
        [x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)], dim=-1
    )


def find_candidates(
    head: Any, maps: tuple[Tensor, ...], cfg: Any, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the best candidates of an anchor head, RPN or RetinaNet, before suppression.

    They are the `nms_pre` pairs of anchor and class of each level with the highest sigmoid scores.

    Args:
        cfg: The head's test_cfg.
        maps: Feature maps of padded images.
        size: Height and width of the images without padding.

    Returns:
        Boxes (B, n, 4); scores (B, n), -1 unless both sides of the box exceed `min_bbox_size`;
        labels and levels (B, n).
    """
    logits, deltas = head(maps)
    grids = [level.shape[-2:] for level in logits]
    anchors = head.prior_generator.grid_priors(grids, device=logits[0].device)
    classes = head.cls_out_channels
    selected = []
    for level, (logit, delta, anchor) in enumerate(zip(logits, deltas, anchors, strict=True)):
        # Scores are ordered by cell, then by anchor of the cell, then by class.
        score = logit.permute(0, 2, 3, 1).flatten(1).sigmoid()
        delta = delta.permute(0, 2, 3, 1).reshape(delta.shape[0], -1, 4)
        count = score.shape[1]
        if cfg.get("nms_pre", -1) > 0:
            count = torch.sym_min(cfg.nms_pre, count)
        score, index = score.topk(count)
        anchor_index = index // classes
        images = torch.arange(score.shape[0], device=score.device)[:, None]
        boxes = decode(anchor[anchor_index], delta[images, anchor_index], head.bbox_coder, size)
        selected.append((boxes, score, index % classes, torch.full_like(index, level)))
    columns = zip(*selected, strict=True)
    boxes, scores, labels, levels = (torch.cat(column, dim=1) for column in columns)
    if cfg.get("min_bbox_size", -1) >= 0:
        is_large = (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(dim=-1)
        scores = scores.where(is_large, -1.0)
    return boxes, scores, labels, levels


def select_by_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, cfg: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Select the candidates (B, n, ...) that the `nms` of a test_cfg keeps within each group.

    A group is a class or a level. Groups are shifted apart as in mmcv, with its rounding, so that
    boxes of two groups never overlap. A candidate with a negative score is never selected.

    Returns:
        Boxes, scores, groups and indices of images, (kept, ...).
    """
    valid = boxes.where((scores >= 0)[..., None], 0.0)
    furthest = F.pad(valid, (0, 0, 0, 1)).amax(dim=(1, 2))  # 0 without boxes
    shifted = boxes + (groups.to(boxes) * (furthest[:, None] + 1))[..., None]
    kept = nms(shifted, scores, cfg.nms.iou_threshold, cfg.max_per_img)
    images, index = kept.unbind(1)
    return boxes[images, index], scores[images, index], groups[images, index], images
