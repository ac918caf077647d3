"""Whether an exported detector detects what mmdet detects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from .detectors import Detections

__all__ = ["Agreement", "compare_with_mmdet", "made_picture", "to_instances"]

# Height, width, and the score threshold; None: the config's. Above 0 all that may be detected in a made picture are its
# best, above 1 there are none.
CHECKED = (((320, 480), 0.0), ((203, 330), 0.0), ((256, 128), None), ((96, 161), 1.0))
TOLERANCE = 1e-3  # of boxes, in the image's longer side, and of scores, in the highest
DIFFERENT_PIXELS = 0.02  # of the masks
WITHOUT_COUNTERPART = 0.02  # of the detections


@dataclass
class Agreement:
    """How far the detections of two runs are apart.

    Attributes:
        boxes: Largest difference of a coordinate, in the image's longer side.
        scores: Largest difference, in the image's highest score.
        detections: Of both runs together.
        lonely: Of these, how many have no counterpart.
        pixels: In either of two masks, over all detections.
        different_pixels: In one of them alone.
    """

    boxes: float = 0.0
    scores: float = 0.0
    detections: int = 0
    lonely: int = 0
    pixels: int = 0
    different_pixels: int = 0

    def add(self, found: Any, expected: Any, size: tuple[int, int], cut: float) -> None:
        """Compare the detections of one image.

        Each has at most one counterpart: of its class, box and score within the tolerance. A detection that has
        none and whose score is within the tolerance of `cut` is not counted.

        Args:
            found, expected: mmengine's InstanceData, masks of the image's size.
            size: The image's height and width.
            cut: The score that a detection needs.
        """
        top = torch.cat([found.scores, expected.scores, torch.zeros(1)]).max().item()
        boxes = (found.bboxes[:, None] - expected.bboxes).abs().amax(dim=2) / max(size)
        scores = (found.scores[:, None] - expected.scores).abs() / max(top, 1e-12)
        fits = (boxes <= TOLERANCE) & (scores <= TOLERANCE) & (found.labels[:, None] == expected.labels)
        distance = (boxes + scores).where(fits, float("inf"))
        pairs = []
        while distance.numel() and distance.min() < float("inf"):
            i, j = divmod(int(distance.argmin()), distance.shape[1])
            distance[i], distance[:, j] = float("inf"), float("inf")
            pairs.append((i, j))
        for i, j in pairs:
            self.boxes, self.scores = max(self.boxes, boxes[i, j].item()), max(self.scores, scores[i, j].item())
            if "masks" in expected:
                one, other = found.masks[i], expected.masks[j]
                self.pixels += int((one | other).sum())
                self.different_pixels += int((one ^ other).sum())
        for side, matched in zip((found, expected), zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
            alone = [score for k, score in enumerate(side.scores.tolist()) if k not in matched]
            beyond = [score for score in alone if abs(score - cut) > TOLERANCE * top]
            self.lonely += len(beyond)
            self.detections += len(matched) + len(beyond)

    def check(self) -> None:
        """Raise a RuntimeError if the two do not agree; NMS and top-k may choose otherwise among near ties."""
        if not self.detections:
            raise RuntimeError("torch detects nothing in generated pictures, whatever its score: not written")
        if self.lonely > WITHOUT_COUNTERPART * self.detections:
            raise RuntimeError(
                f"{self.lonely} of {self.detections} detections of the exported model and torch have no counterpart "
                "in the other's: not written"
            )
        if self.different_pixels > DIFFERENT_PIXELS * self.pixels:
            share = self.different_pixels / self.pixels
            raise RuntimeError(f"masks of the exported model differ from torch's in {share:.1%} of pixels: not written")

    def lines(self) -> dict[str, str]:
        """For each output how near it is."""
        lines = dict(
            boxes=f"within {self.boxes:.1e} of torch, in units of the image's longer side",
            scores=f"within {self.scores:.1e} of torch, in units of the highest",
            labels=f"{self.detections - self.lonely} of {self.detections} detections have a counterpart in the other's",
        )
        if self.pixels:
            lines["masks"] = f"{self.different_pixels} of {self.pixels} pixels differ from torch's"
        return lines


def made_picture(channels: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Smooth noise and rectangles in normalised values, (1, channels, height, width)."""
    coarse = torch.randn(1, channels, height // 16 + 1, width // 16 + 1, generator=generator)
    picture = F.interpolate(coarse, (height, width), mode="bilinear")
    for _ in range(12):
        y, x = (int(torch.randint(length - 16, (), generator=generator)) for length in (height, width))
        tall, wide = (int(torch.randint(8, 96, (), generator=generator)) for _ in range(2))
        picture[..., y : y + tall, x : x + wide] = torch.randn(channels, 1, 1, generator=generator)
    return picture


def to_instances(outputs: list[Tensor], meta: dict[str, Any], mask_threshold: float) -> Any:
    """A file's detections as mmdet's, in the picture's own pixels.

    Args:
        outputs: boxes, scores, labels and, of an instance segmentor, masks (n, 28, 28).
        meta: Of mmdet's data sample: `ori_shape` and `scale_factor`.
        mask_threshold: A pixel of an object needs this probability.

    Returns:
        InstanceData with bboxes, scores, labels and masks (n, H, W).
    """
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
    from mmengine.structures import InstanceData

    boxes, scores, labels, *grids = outputs
    height, width = meta["ori_shape"][:2]
    boxes = boxes / boxes.new_tensor(meta["scale_factor"]).repeat(2)
    found = InstanceData(bboxes=boxes.clone(), scores=scores, labels=labels)
    found.bboxes[:, 0::2].clamp_(0, width)  # what the picture was padded with is not of it
    found.bboxes[:, 1::2].clamp_(0, height)
    for grid in grids:
        found.masks = torch.zeros(len(boxes), height, width, dtype=torch.bool)
        for mask, one, box in zip(found.masks, grid[:, None, None], boxes[:, None], strict=True):
            mask[:] = _do_paste_mask(one, box, height, width, skip_empty=False)[0][0] >= mask_threshold
    return found


def compare_with_mmdet(model: Detections, run: Callable[[float | None], Callable], channels: int) -> Agreement:
    """Compare an exported detector with mmdet's `predict` on generated pictures, one of them without any detection.

    Args:
        model: What was exported.
        run: Given a score threshold, or None for the config's, a function from an image to the file's outputs.
        channels: Of an image.
    """
    from mmdet.structures import DetDataSample

    generator = torch.Generator().manual_seed(0)
    agreement = Agreement()
    for size, threshold in CHECKED:
        image = made_picture(channels, *size, generator)
        meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
        found = to_instances(run(threshold)(image), meta, model.cfg.get("mask_thr_binary", 0.5))
        cut = model.cfg.score_thr if threshold is None else threshold
        with patch.dict(model.cfg, score_thr=cut), torch.no_grad():
            (sample,) = model.model.predict(model.padded(image), [DetDataSample(metainfo=meta)], rescale=False)
        expected = sample.pred_instances
        if len(expected) == model.cfg.max_per_img:  # the others have been cut off
            cut = expected.scores.min().item()
        agreement.add(found, expected, size, cut)
    return agreement
