"""Model and pipelines of a config, for the classes and labels of another data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmengine.config import Config

from ..datasets import IGNORED, Dataset
from ..utils.configs import leaf_datasets, read_config, type_name
from ..utils.errors import preview
from ..weights.zoo import find_model

TAKEN = (
    "--from takes detectors and segmentors whose heads have num_classes, such as Mask R-CNN, "
    "RetinaNet, Mask2Former, Semantic FPN and UperNet"
)
_WRAPPERS = ("RepeatDataset", "ClassBalancedDataset")  # whose images pass the inner pipeline only
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
        base, checkpoint = (name, None) if name.endswith(".py") else find_model(name)
        cfg = read_config(base)
        if cfg.get("default_scope") not in ("mmdet", "mmseg"):
            raise ValueError(f"{name} is a {type_name(cfg.model)}: {TAKEN}")
        pipelines = [
            _find_pipeline(name, cfg, f"{split}_dataloader") for split in ("train", "test")
        ]
        return cls(name, base, checkpoint, cfg, cfg.model.to_dict(), pipelines)

    @property
    def is_detector(self) -> bool:
        return self.cfg.default_scope == "mmdet"


def _find_pipeline(model: str, cfg: Config, name: str) -> Pipeline:
    """Return the pipeline of the only data set of a dataloader."""
    fix = "--from takes one data set with a pipeline"
    if not cfg.get(name):
        raise ValueError(f"{model} has no {name}, {fix}")
    dataset = cfg[name].dataset.to_dict()
    leaves = list(leaf_datasets(dataset))
    is_wrapped = leaves[0] is not dataset
    if len(leaves) > 1 or (is_wrapped and type_name(dataset) not in _WRAPPERS):
        raise ValueError(f"{model} has {type_name(dataset)}, {fix}")
    return leaves[0]["pipeline"]


def adapt_to_data(adapted: Adapted, dataset: Dataset, boxes: bool) -> None:
    """Adapt a model to the classes and labels of a data set.

    Args:
        boxes: Whether a model with masks shall find only boxes.

    Raises:
        ValueError: If some objects lack masks, or the model cannot be fine-tuned on the labels.
    """
    model = adapted.model
    change = _adapt_maps_step
    if adapted.is_detector:
        _choose_masks(adapted, dataset, boxes)
        has_empty = dataset.training.count_empty() > 0
        change = partial(_adapt_objects_step, masks=adapted.masks, keeps_empty=has_empty)
    else:
        model["data_preprocessor"]["seg_pad_val"] = IGNORED
    heads = {key: part for key, part in model.items() if key not in _WITHOUT_CLASSES}
    count = _set_class_counts(adapted.name, heads, len(dataset.classes))
    if not count or "language_model" in model:
        raise ValueError(f"{adapted.name} is a {model['type']} without num_classes: {TAKEN}")
    training, test = (map_steps(steps, change) for steps in adapted.pipelines)
    adapted.pipelines = [_resize_randomly(training), test]
    if adapted.checkpoint:  # which replaces the weights of the backbone
        model["backbone"]["init_cfg"] = None
        for part in (model, model["backbone"]):
            if part.get("pretrained"):
                part["pretrained"] = None


def _choose_masks(adapted: Adapted, dataset: Dataset, boxes: bool) -> None:
    """Set `adapted.masks`, until now False, if a model that predicts masks shall keep them. Else it
    finds only boxes: if these are wanted, or no object has a mask.

    Raises:
        ValueError: If only some objects have masks, or the model needs masks.
    """
    model = adapted.model
    roi_head = model.get("roi_head") or {}
    if not ("panoptic_head" in model or model.get("mask_head") or roi_head.get("mask_head")):
        return
    if not boxes:
        without_mask = []
        for split in filter(None, (dataset.training, dataset.held_out)):
            masks = split.objects.masks if split.objects is not None else []
            without_mask += [split.name_object(row) for row, mask in enumerate(masks) if not mask]
        count = dataset.count_labels()
        if 0 < len(without_mask) < count:
            problem = f"{len(without_mask)} of {count} objects have no mask"
            fix = "draw or remove them, or train boxes alone by --boxes"
            raise ValueError(f"{problem}: {preview(without_mask)}: {fix}")
        adapted.masks = not without_mask
    if adapted.masks:
        return
    if roi_head.get("type") not in ("StandardRoIHead", "CascadeRoIHead"):
        raise ValueError(f"{adapted.name} needs masks: give data with masks, or another detector")
    roi_head |= dict(mask_roi_extractor=None, mask_head=None)
    if model["type"] == "MaskRCNN":
        model["type"] = "FasterRCNN"


def _set_class_counts(name: str, part: Any, classes: int, is_loss_cls: bool = False) -> int:
    """Set the number of classes in all heads of a part, and options that depend on it. Return how
    many numbers were set.
    """
    if isinstance(part, list | tuple):
        return sum(_set_class_counts(name, stage, classes, is_loss_cls) for stage in part)
    if not isinstance(part, dict):
        return 0
    count = 0
    for key, value in part.items():
        count += _set_class_counts(name, value, classes, key == "loss_cls")
    for key in ("num_classes", "num_things_classes"):
        if key in part:
            count += 1
            part[key] = classes
    if part.get("out_channels") == 1:  # a threshold divides two classes
        part["out_channels"] = None
    if part.get("num_stuff_classes"):
        raise ValueError(f"{name} also segments stuff: {TAKEN}")
    if "ignore_index" in part:
        part["ignore_index"] = IGNORED
    weights = part.get("class_weight")
    if isinstance(weights, list | tuple | str):  # a text names a file of weights
        # The last weight of a softmax over detected objects is that of no object.
        has_no_object = is_loss_cls and not part.get("use_sigmoid")
        of_classes = weights[:-1] if has_no_object else weights
        if len(set(of_classes)) != 1:
            problem = f"{name} weights its classes by {weights}"
            raise ValueError(f"{problem}: set class_weight=None")
        no_object = weights[-1:] if has_no_object else []
        part["class_weight"] = [of_classes[0]] * classes + list(no_object)
    return count


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config that differ from those of its base."""
    changes = {}
    for key, value in new.items():
        old_value = old.get(key)
        if isinstance(value, dict) and isinstance(old_value, dict):
            inner = difference(old_value, value)
            if inner:
                changes[key] = inner
        elif key not in old or value != old_value:
            changes[key] = value
    return changes


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


def _adapt_objects_step(step: dict, masks: bool, keeps_empty: bool) -> list[dict]:
    """Adapt a step of a detector's pipeline. With `keeps_empty`, photos without objects pass."""
    changes: dict[str, Any] = {}
    name = type_name(step)
    if name == "LoadAnnotations":
        changes.update(with_bbox=True, with_mask=masks)
    elif name == "RandomCrop" and keeps_empty:
        changes.update(allow_negative_crop=True)
    elif name == "FilterAnnotations":
        changes.update(by_mask=masks and step.get("by_mask", False))
        if keeps_empty:
            changes.update(keep_empty=False)  # mmdet's True drops empty photos
    return [step | changes]


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
