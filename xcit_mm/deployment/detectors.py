"""mmdet's detectors as traceable functions of images, which return boxes, scores, labels and masks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operators import nms, roi_align
from .runtime.results import OPTIONS
from .traceable import extract_maps, stages

MAX_LOG_RATIO = 4.135166556742356  # |log(16 / 1000)|, the limit of scaling a side


class ExportableDetector(nn.Module):
    """Detect objects in images as mmdet's Mask R-CNN, Faster R-CNN, Cascade (Mask) R-CNN or RetinaNet does.

    All options of the config's test_cfg are respected. The module pads the images itself, as mmdet's preprocessor does,
    since proposals are clipped before the padding.

    Args:
        model: mmdet's detector, which `check_detector` has accepted.
        is_padded: Whether the outputs are padded to `max_per_img` detections, for one image.

    Attributes:
        outputs: Names of the outputs.
        options: `OPTIONS` of the config's test_cfg, (1,) each.
    """

    def __init__(self, model: Any, is_padded: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.is_padded = is_padded
        self.cfg: Any = model.roi_head.test_cfg if hasattr(model, "roi_head") else model.bbox_head.test_cfg
        options = (float(self.cfg.get("score_thr", 0)), self.cfg.nms.iou_threshold, self.cfg.max_per_img)
        self.options = {name: torch.tensor([value]) for name, value in zip(OPTIONS, options, strict=True)}
        preprocessor = model.data_preprocessor
        self.divisor: int = preprocessor.pad_size_divisor
        self.ignore_padding = False
        self.pad_value = float(preprocessor.pad_value)
        self.outputs = ["boxes", "scores", "labels", "images"] + ["masks"] * model.with_mask

    def forward(self, image: Tensor, *options: Tensor) -> tuple[Tensor, ...]:
        """Detect objects.

        Args:
            image: Normalised images, (B, C, H, W).
            options: Other values of `OPTIONS`, (1,) each, in their order.

        Returns:
            Boxes (n, 4), x1, y1, x2, y2 in pixels of `image`; scores (n,), highest of an image first; labels (n,),
            int64; indices of the images (n,), int64, ascending; with a mask head probabilities (n, 28, 28) that the
            cells of a grid over the box belong to the object.
        """
        found = self._detect(image, options or tuple(self.options.values()))
        if not self.is_padded:
            return found
        rows = torch.arange(self.cfg.max_per_img, device=image.device)
        padded = []
        for name, output in zip(self.outputs, found, strict=True):
            padding = (*(0, 0) * (output.ndim - 1), 0, len(rows))  # of the first dimension
            padded.append(F.pad(output, padding, value=-1 if name == "labels" else 0)[rows])
        return tuple(padded)

    def _detect(self, image: Tensor, options: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        height, width = image.shape[2:]
        size = (height, width)
        padded = (height + -height % self.divisor, width + -width % self.divisor)
        maps = extract_maps(self.model, image, padded, self.ignore_padding, self.pad_value)
        if not hasattr(self.model, "roi_head"):
            boxes, scores, labels, _ = candidates(self.model.bbox_head, maps, self.cfg, size)
            return _best(boxes, scores, labels, options)
        proposals, images = propose(self.model.rpn_head, maps, size)
        roi_head = self.model.roi_head
        boxes, scores, labels = _classified(roi_head, maps, proposals, images, size)
        # Each image has the candidates of all images, with a score of -1 for those of other images.
        number = torch.arange(image.shape[0], device=image.device)[:, None, None]
        scores = scores.where(images[:, None] == number, -1.0).flatten(1)
        boxes = boxes.flatten(0, 1).expand(image.shape[0], -1, -1)
        detected = _best(boxes, scores, labels.flatten().expand(image.shape[0], -1), options)
        if not roi_head.with_mask:
            return detected
        boxes, _, labels, images = detected
        return (*detected, _masks(roi_head, maps, boxes, images, labels))


def _best(boxes: Tensor, scores: Tensor, labels: Tensor, options: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Select detections from candidates (B, n, ...) by `OPTIONS`, and the indices of their images."""
    score_thr, iou_threshold, max_per_img = options
    images, index = batched_nms(boxes, scores, labels, iou_threshold, score_thr, max_per_img).unbind(1)
    return boxes[images, index], scores[images, index], labels[images, index], images


def _of_class(values: Tensor, labels: Tensor) -> Tensor:
    """Select the values of the labels (n,) from values (n, classes, ...)."""
    return values[torch.arange(labels.shape[0], device=labels.device), labels]


def _pool(extractor: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor) -> Tensor:
    """Pool features (n, C, size, size) of boxes (n, 4) of images (n,)."""
    layers = extractor.roi_layers
    levels = extractor.map_roi_levels(F.pad(boxes, (1, 0)), len(layers))  # mmdet puts the image's index before the box
    scales = [layer.spatial_scale for layer in layers]
    size, ratio = layers[0].output_size[0], layers[0].sampling_ratio
    return roi_align(list(maps[: len(layers)]), boxes, images, levels, scales, size, ratio)


def _classified(
    roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Classify proposals (n, 4): boxes (n, classes, 4), scores and labels (n, classes) of each pair with a class."""
    extractors, heads = stages(roi_head.bbox_roi_extractor), stages(roi_head.bbox_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits, deltas = head(_pool(extractor, maps, boxes, images))
        deltas = deltas.unflatten(1, (-1, 4))  # n, classes or 1, 4
        total = total + logits
        if head is not heads[-1]:
            own = deltas[:, 0] if head.reg_class_agnostic else _of_class(deltas, logits[:, :-1].argmax(dim=1))
            boxes = decode(boxes, own, head.bbox_coder, size)
    classes = head.num_classes
    scores = (total / len(heads)).softmax(dim=1)[:, :classes]
    boxes = decode(boxes[:, None], deltas, head.bbox_coder, size).expand(-1, classes, -1)
    return boxes, scores, torch.arange(classes, device=boxes.device).expand_as(scores)


def _masks(roi_head: Any, maps: tuple[Tensor, ...], boxes: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Compute mask probabilities (n, 28, 28) for the classes of boxes (n, 4) of images (n,)."""
    extractors, heads = stages(roi_head.mask_roi_extractor), stages(roi_head.mask_head)
    total: Any = 0
    for extractor, head in zip(extractors, heads, strict=True):
        logits = head(_pool(extractor, maps, boxes, images))
        logits = logits[:, 0] if head.class_agnostic else _of_class(logits, labels)
        total = total + logits.sigmoid()
    return total / len(heads)


def decode(anchors: Tensor, deltas: Tensor, coder: Any, size: tuple[int, int]) -> Tensor:
    """Decode boxes (..., 4) from anchors and deltas (..., 4) as mmdet's DeltaXYWHBBoxCoder does."""
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    low, high = anchors[..., :2], anchors[..., 2:]
    center = (low + high) * 0.5 + (high - low) * deltas[..., :2]
    half = (high - low) * deltas[..., 2:].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * 0.5
    x1, y1, x2, y2 = torch.cat([center - half, center + half], dim=-1).unbind(-1)
    height, width = size
    return torch.stack([x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)], dim=-1)


def candidates(
    head: Any, maps: tuple[Tensor, ...], cfg: Any, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the best `nms_pre` pairs of anchor and class of each level of an anchor head with sigmoid scores.

    The maps are those of images of `size`, height and width, with their padding. Returns boxes (B, n, 4); scores
    (B, n), -1 for boxes smaller than `min_bbox_size`; labels and levels (B, n), int64.
    """
    scores, deltas = head(maps)
    if hasattr(head, "crop_to_image"):  # of an UnpaddedRPNHead
        scores, deltas = (head.crop_to_image(kind, size) for kind in (scores, deltas))
    anchors = head.prior_generator.grid_priors([level.shape[-2:] for level in scores], device=scores[0].device)
    found = []
    for level, (score, delta, anchor) in enumerate(zip(scores, deltas, anchors, strict=True)):
        # Ordered by cell, then by anchor, then by class.
        score = score.permute(0, 2, 3, 1).flatten(1).sigmoid()
        delta = delta.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))
        count = torch.sym_min(cfg.nms_pre, score.shape[1]) if cfg.get("nms_pre", -1) > 0 else score.shape[1]
        score, index = score.topk(count)
        cell = index // head.cls_out_channels
        image = torch.arange(score.shape[0], device=score.device)[:, None]
        boxes = decode(anchor[cell], delta[image, cell], head.bbox_coder, size)
        found.append((boxes, score, index % head.cls_out_channels, torch.full_like(index, level)))
    boxes, score, labels, levels = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    if cfg.get("min_bbox_size", -1) >= 0:
        large = (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(dim=-1)
        score = score.where(large, -1.0)
    return boxes, score, labels, levels


def batched_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: Tensor, score_threshold: Tensor, max_num: Tensor
) -> Tensor:
    """Apply `nms` within each group (B, n), by shifting groups apart as mmcv does, with its rounding."""
    chosen = boxes.where((scores > score_threshold)[..., None], 0.0)
    furthest = F.pad(chosen, (0, 0, 0, 1)).amax(dim=(1, 2))  # 0 if there is none
    shifted = boxes + (groups.to(boxes) * (furthest[:, None] + 1))[..., None]
    return nms(shifted, scores, iou_threshold, score_threshold, max_num)


def propose(head: Any, maps: tuple[Tensor, ...], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return an RPNHead's proposals (n, 4), at most `max_per_img` of its test_cfg for an image, and images (n,)."""
    cfg = head.test_cfg
    boxes, scores, _, levels = candidates(head, maps, cfg, size)
    score_threshold = scores.new_full((1,), -0.5)  # excludes boxes smaller than `min_bbox_size`
    iou_threshold, max_num = scores.new_full((1,), cfg.nms.iou_threshold), levels.new_full((1,), cfg.max_per_img)
    images, index = batched_nms(boxes, scores, levels, iou_threshold, score_threshold, max_num).unbind(1)
    return boxes[images, index], images
