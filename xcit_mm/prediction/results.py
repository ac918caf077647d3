"""A detector's predictions in plain numbers, and as the results that pycocotools evaluates."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement

from .inputs import Input
from .tiling import encode_mask

__all__ = ["Instances", "assign_ids", "coco_results", "instances_of", "read_ids"]


class Instances(NamedTuple):
    """Objects found in an image, best first.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, (n, 4).
        scores: (n,).
        labels: Class numbers from 0, (n,).
        masks: (n, H, W), bool, or after tiles a list of n in COCO's run-length code; None of a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | list[dict] | None

    def above(self, score: float) -> "Instances":
        """Those of a higher score."""
        keep = np.flatnonzero(self.scores > score)
        masks = self.masks[keep] if isinstance(self.masks, np.ndarray) else self.masks
        masks = [masks[number] for number in keep] if isinstance(masks, list) else masks
        return Instances(self.boxes[keep], self.scores[keep], self.labels[keep], masks)


def instances_of(sample: BaseDataElement) -> Instances:
    """What mmdet or `detect_in_tiles` found in an image.

    Raises:
        ValueError: If the model predicts no instances.
    """
    if "pred_instances" not in sample:
        raise ValueError("the model predicts no instances: only detectors of boxes or of instance masks are shown")
    from mmdet.structures.mask import mask2bbox

    found = sample.pred_instances.cpu().numpy()
    masks, boxes = found.get("masks"), found.bboxes
    if isinstance(masks, np.ndarray) and not boxes.any():  # as of SOLO, which has no boxes
        boxes = mask2bbox(torch.from_numpy(masks)).numpy()
    return Instances(boxes, found.scores, found.labels, masks)


def coco_results(found: Instances, image_id: int, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Results as pycocotools' `COCO.loadRes` reads them: boxes as left, top, width and height, masks as text."""
    results = []
    for number, (left, top, right, bottom) in enumerate(found.boxes.tolist()):
        result = dict(
            image_id=image_id,
            category_id=category_ids[found.labels[number]],
            bbox=[left, top, right - left, bottom - top],
            score=float(found.scores[number]),
        )
        if found.masks is not None:
            mask = found.masks[number]
            mask = mask if isinstance(mask, dict) else encode_mask(mask, (0, 0), mask.shape)
            result["segmentation"] = dict(size=list(mask["size"]), counts=mask["counts"].decode())
        results.append(result)
    return results


def read_ids(ann_file: Path, classes: Sequence[str]) -> tuple[dict[str, int], list[int]]:
    """Ids of the ground truth's images, by file name, and of the classes' categories, by name.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a COCO json, or lacks a class.
    """
    if not ann_file.is_file():
        raise FileNotFoundError(f"no annotation file at {ann_file}")
    try:
        content = json.loads(ann_file.read_text())
        images = {one["file_name"]: one["id"] for one in content["images"]}
        categories = {one["name"]: one["id"] for one in content["categories"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{ann_file} is not a COCO json with images and categories: {error}") from None
    missing = [name for name in classes if name not in categories]
    if missing:
        known = ", ".join(map(str, categories))
        raise ValueError(f"{ann_file} has no category {', '.join(missing)} of the config's classes, but {known[:200]}")
    return images, [categories[name] for name in classes]


def assign_ids(inputs: Iterable[Input], ids: dict[str, int]) -> tuple[list[Input], dict[str, int], list[str]]:
    """Match files to a ground truth's file names, which may leave out folders that lead there.

    Args:
        inputs: Files; videos have no id.
        ids: By file name.

    Returns:
        The inputs that the ground truth has, their ids by their keys, and a line on what either lacks.

    Raises:
        ValueError: If there are none, or two are the same image.
    """
    kept, found, unknown = [], {}, []
    owners: dict[int, Input] = {}
    for one in inputs:
        parts = one.path.absolute().parts
        endings = ("/".join(parts[start:]) for start in range(len(parts)))  # the most exact first
        image_id = next((ids[ending] for ending in endings if ending in ids), None)
        if image_id is None or one.is_video:
            unknown.append(one)
        elif image_id in owners:
            other = owners[image_id].path
            raise ValueError(
                f"{other} and {one.path} are both image {image_id} of the annotation file: give one folder"
            )
        else:
            owners[image_id] = one
            kept.append(one)
            found[one.key] = image_id
    if not kept:
        raise ValueError(f"the annotation file lists none of the {len(unknown)} inputs: {unknown[0].path}, ...")
    notes = []
    if unknown:
        notes.append(f"left out {len(unknown)} not in the annotation file: {unknown[0].path}, ...")
    if len(kept) < len(ids):
        notes.append(f"{len(ids) - len(kept)} of {len(ids)} images of the annotation file are not among the inputs")
    return kept, found, notes
