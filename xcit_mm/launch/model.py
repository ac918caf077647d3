"""Model and pipelines of a config, for the classes and labels of another data set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..datasets import IGNORED, CocoFile, Dataset
from ..utils.configs import read_config, type_name
from ..utils.errors import preview
from ..weights.zoo import find_model

TAKEN = "--from takes detectors and segmentors whose heads have num_classes"
_WITHOUT_CLASSES = ("backbone", "neck", "data_preprocessor", "rpn_head")

Pipeline = list[Any]
"""Steps, each a dict, or in RandomChoice a list of steps."""


@dataclass
class Adapted:
    """A model, and what becomes of it for another data set.

    Attributes:
        name: What the user calls it.
        base: Path of its config.
        checkpoint: Its weights, or None for the config's own start.
        cfg: Its config, which stays as it is.
        model: Config of the new model.
        pipelines: New steps of training and test.
        masks: Whether the new model predicts masks of objects.
    """

    name: str
    base: str
    checkpoint: str | None
    cfg: Config
    model: dict[str, Any]
    pipelines: list[Pipeline]
    masks: bool = False

    @classmethod
    def of(cls, name: str) -> "Adapted":
        """Read a model, as in `find_model`, or a config alone, which has no checkpoint.

        Raises:
            FileNotFoundError: If files are missing.
            ValueError: If the model or its data sets cannot be fine-tuned.
        """
        base = name
        checkpoint = None
        if not name.endswith(".py"):
            base, checkpoint = find_model(name)
            if Path(checkpoint).is_file():
                checkpoint = str(Path(checkpoint).resolve())
        cfg = read_config(base)
        if cfg.get("default_scope") not in ("mmdet", "mmseg"):
            raise ValueError(f"{name} is a {type_name(cfg.model)}: {TAKEN}")
        pipelines = []
        for loader in ("train_dataloader", "test_dataloader"):
            dataset: Any = (cfg.get(loader) or {}).get("dataset") or {}
            if "pipeline" not in dataset:
                problem = f"the data set of {name}'s {loader} has no pipeline"
                raise ValueError(f"{problem}: --from takes data sets without wrappers")
            pipelines.append(dataset.to_dict()["pipeline"])
        return cls(name, base, checkpoint, cfg, cfg.model.to_dict(), pipelines)

    @property
    def is_detector(self) -> bool:
        return self.cfg.default_scope == "mmdet"


def adapt_to_data(adapted: Adapted, dataset: Dataset, boxes: bool) -> None:
    """Adapt a model to the classes and labels of a data set.

    Args:
        boxes: Whether a model with masks shall find only boxes.

    Raises:
        ValueError: If some objects lack masks, or the model cannot be fine-tuned on the labels.
    """
    model = adapted.model
    roi_head = model.get("roi_head") or {}
    change = _adapt_maps_step
    if adapted.is_detector:
        if "panoptic_head" in model or model.get("mask_head") or roi_head.get("mask_head"):
            adapted.masks = not boxes and _have_masks(dataset)
            if not adapted.masks:
                _leave_out_masks(adapted.name, model, roi_head)
        change = partial(_adapt_objects_step, masks=adapted.masks)
    else:
        model["data_preprocessor"]["seg_pad_val"] = IGNORED
    heads = [part for key, part in model.items() if key not in _WITHOUT_CLASSES]
    for part in iter_dicts(heads):
        _set_classes(adapted.name, part, len(dataset.classes))
    if not any("num_classes" in part or "num_things_classes" in part for part in iter_dicts(heads)):
        raise ValueError(f"{adapted.name} is a {model['type']} without num_classes: {TAKEN}")
    training, test = (map_steps(steps, change) for steps in adapted.pipelines)
    adapted.pipelines = [_resize_randomly(training), test]
    if adapted.checkpoint:  # which replaces the weights of the backbone
        model["backbone"]["init_cfg"] = None
        for part in (model, model["backbone"]):
            if part.get("pretrained"):
                part["pretrained"] = None


def _have_masks(dataset: Dataset) -> bool:
    """Return whether objects have masks. Raise ValueError if only some have."""
    total = 0
    without_mask = []
    for split in (dataset.train, dataset.val):
        if isinstance(split, CocoFile):
            names = {image.id: image.file_name for image in split.images}
            total += len(split.annotations)
            lacking = [part for part in split.annotations if not part.has_mask]
            without_mask += [names[annotation.image_id] for annotation in lacking]
    if 0 < len(without_mask) < total:
        problem = f"{len(without_mask)} of {total} objects have no mask, in {preview(without_mask)}"
        raise ValueError(f"{problem}: draw or remove them, or train boxes alone by --boxes")
    return not without_mask


def _leave_out_masks(name: str, model: dict[str, Any], roi_head: dict[str, Any]) -> None:
    """Change a model to one that finds boxes. Raise ValueError if it needs masks."""
    if roi_head.get("type") not in ("StandardRoIHead", "CascadeRoIHead"):
        raise ValueError(f"{name} needs masks: give data with masks, or another detector")
    roi_head |= dict(mask_roi_extractor=None, mask_head=None)
    if model["type"] == "MaskRCNN":
        model["type"] = "FasterRCNN"


def iter_dicts(part: Any) -> Iterator[dict]:
    """Yield all dicts inside a part of a config."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list | tuple):
        for inner in part:
            yield from iter_dicts(inner)


def _set_classes(name: str, part: dict[str, Any], classes: int) -> None:
    """Set the number of classes in a part of a head, and what depends on it."""
    for key in ("num_classes", "num_things_classes"):
        if key in part:
            part[key] = classes
    if part.get("out_channels") == 1:  # a threshold divides two classes
        part["out_channels"] = None
    if part.get("num_stuff_classes"):
        raise ValueError(f"{name} also segments stuff: {TAKEN}")
    if "ignore_index" in part:
        part["ignore_index"] = IGNORED
    weights = part.get("class_weight")
    if isinstance(weights, list | tuple | str):  # a text names a file
        *of_classes, no_object = list(weights)  # as Mask2Former has it
        if len(set(of_classes)) != 1 or no_object in of_classes:
            raise ValueError(f"{name} weights its classes by {weights}: set class_weight=None")
        part["class_weight"] = of_classes[:1] * classes + [no_object]


def map_steps(steps: Pipeline, change: Callable[[dict], Sequence[dict]]) -> Pipeline:
    """Replace each step by the steps that a function returns for it, also inside other steps."""
    changed: Pipeline = []
    for step in steps:
        if not isinstance(step, dict):
            changed.append(map_steps(step, change))
            continue
        inner = step.get("transforms")
        if inner and type_name(step) != "Albu":  # whose steps are those of albumentations
            step = step | dict(transforms=map_steps(inner, change))
        changed += change(step)
    return changed


def _adapt_objects_step(step: dict, masks: bool) -> list[dict]:
    """Adapt a step of a detector's pipeline. Photos without objects pass, as background."""
    name = type_name(step)
    if name == "LoadAnnotations":
        return [step | dict(with_bbox=True, with_mask=masks)]
    if name == "RandomCrop":
        return [step | dict(allow_negative_crop=True)]
    if name == "FilterAnnotations":  # mmdet's keep_empty=True drops photos without objects
        return [step | dict(by_mask=masks and step.get("by_mask", False), keep_empty=False)]
    return [step]


def _adapt_maps_step(step: dict) -> list[dict]:
    """Adapt a step of a segmentor's pipeline to labels 0, 1, ... and the ignored label."""
    if type_name(step) == "LoadAnnotations":
        return [dict(type="LoadAnnotations")]  # without reduce_zero_label
    return [step | dict(ignore_index=IGNORED) if "ignore_index" in step else step]


def _resize_randomly(steps: Pipeline) -> Pipeline:
    """Replace the one size of a detector's photos by random sizes, unless the pipeline has other
    steps too.

    Measured in docs/benchmark.md, "Fine-tuning".
    """
    only = {"LoadImageFromFile", "LoadAnnotations", "Resize", "RandomFlip", "PackDetInputs"}
    if {type_name(step) for step in steps} != only:
        return steps
    random = dict(type="RandomResize", ratio_range=(0.67, 1.5))
    return [
        step | random if type_name(step) == "Resize" and step.get("scale") else step
        for step in steps
    ]
