"""Model and pipelines of a config, for the classes and labels of another data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmengine.config import Config

from ..datasets import IGNORED, Dataset
from ..utils.configs import leaf_datasets, type_name
from ..utils.errors import preview

TAKEN = (
    "--from takes detectors and segmentors whose heads have num_classes, such as Mask R-CNN, "
    "RetinaNet, Mask2Former, Semantic FPN and UperNet"
)
_WRAPPERS = ("RepeatDataset", "ClassBalancedDataset")  # whose images pass the inner pipeline only
_WITHOUT_CLASSES = ("backbone", "neck", "data_preprocessor", "rpn_head")


def find_pipelines(model: str, cfg: Config) -> list[list[dict]]:
    """Return the steps of training and test of a model that can be fine-tuned.

    Raises:
        ValueError: If the model or its data sets are of another kind.
    """
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):
        raise ValueError(f"{model} is a {type_name(cfg.model)}: {TAKEN}")
    return [_find_pipeline(model, cfg, f"{split}_dataloader") for split in ("train", "test")]


def _find_pipeline(model: str, cfg: Config, name: str) -> list[dict]:
    if not cfg.get(name):
        raise ValueError(f"{model} has no {name}, --from takes one data set with a pipeline")
    dataset = cfg[name].dataset.to_dict()
    inner, *others = leaf_datasets(dataset)
    is_wrapped = inner is not dataset
    if others or (is_wrapped and type_name(dataset) not in _WRAPPERS):
        problem = f"{model} has {type_name(dataset)}"
        raise ValueError(f"{problem}, --from takes one data set with a pipeline")
    return inner["pipeline"]


Pipeline = list[Any]
"""Steps, each a dict, or in RandomChoice a list of steps."""


@dataclass
class Adapted:
    """Parts of a model's config for another data set.

    Attributes:
        model: Config of the model.
        pipelines: Steps of training and test.
        masks: Whether the model predicts masks of objects.
    """

    model: dict[str, Any]
    pipelines: list[Pipeline]
    masks: bool = False


def adapt_detector(name: str, cfg: Config, dataset: Dataset, boxes: bool) -> Adapted:
    """Adapt a detector to a data set.

    Args:
        name: What the user calls the model.
        boxes: Whether a model with masks shall find only boxes.

    Raises:
        ValueError: If some objects lack masks, or the model cannot be fine-tuned on the objects.
    """
    model = cfg.model.to_dict()
    masks = _predicts_masks(model) and not boxes and have_masks(dataset)
    if _predicts_masks(model) and not masks:
        _remove_masks(name, model)
    _set_classes(name, model, len(dataset.classes))
    background = dataset.training.count_empty() > 0
    adapt = partial(_adapt_objects_step, masks=masks, background=background)
    training, test = (map_steps(steps, adapt) for steps in find_pipelines(name, cfg))
    return Adapted(model, [_resize_randomly(training), test], masks)


def have_masks(dataset: Dataset) -> bool:
    """Return whether the objects of a data set have masks.

    Raises:
        ValueError: If only some have masks. The message names those without.
    """
    without_mask = []
    for split in filter(None, (dataset.training, dataset.held_out)):
        masks = split.objects.masks if split.objects is not None else []
        without_mask += [split.name_object(row) for row, mask in enumerate(masks) if not mask]
    count = dataset.count_labels()
    if 0 < len(without_mask) < count:
        problem = f"{len(without_mask)} of {count} objects have no mask: {preview(without_mask)}"
        raise ValueError(f"{problem}: draw or remove them, or train boxes alone by --boxes")
    return not without_mask


def adapt_segmentor(name: str, cfg: Config, classes: int) -> Adapted:
    """Adapt a segmentor to maps with so many classes, and the ignored label."""
    model = cfg.model.to_dict()
    model["data_preprocessor"]["seg_pad_val"] = IGNORED
    _set_classes(name, model, classes)
    pipelines = [map_steps(steps, _adapt_maps_step) for steps in find_pipelines(name, cfg)]
    return Adapted(model, pipelines)


def remove_pretrained(model: dict[str, Any]) -> None:
    """Remove the weights of the backbone, which a checkpoint of the whole model replaces."""
    model["backbone"]["init_cfg"] = None
    for part in (model, model["backbone"]):
        if part.get("pretrained"):
            part["pretrained"] = None


def _predicts_masks(model: dict[str, Any]) -> bool:
    roi_head = model.get("roi_head") or {}
    return bool("panoptic_head" in model or model.get("mask_head") or roi_head.get("mask_head"))


def _remove_masks(name: str, model: dict[str, Any]) -> None:
    roi_head = model.get("roi_head") or {}
    if roi_head.get("type") not in ("StandardRoIHead", "CascadeRoIHead"):
        raise ValueError(f"{name} needs masks: give data with masks, or another detector")
    roi_head |= dict(mask_roi_extractor=None, mask_head=None)
    if model["type"] == "MaskRCNN":
        model["type"] = "FasterRCNN"


def _set_classes(name: str, model: dict[str, Any], classes: int) -> None:
    heads = {key: part for key, part in model.items() if key not in _WITHOUT_CLASSES}
    if not _set_class_counts(name, heads, classes) or "language_model" in model:
        raise ValueError(f"{name} is a {model['type']} without num_classes: {TAKEN}")


def _set_class_counts(name: str, part: Any, classes: int) -> int:
    """Set the number of classes in all heads of a part, and return how many heads have it."""
    if isinstance(part, list | tuple):
        return sum(_set_class_counts(name, item, classes) for item in part)
    if not isinstance(part, dict):
        return 0
    count = sum(_set_class_counts(name, value, classes) for value in part.values())
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
    if isinstance(weights, list):
        # Mask2Former's last weight is that of no object.
        if set(weights[:-1]) != {1.0}:
            problem = f"{name} weights its classes by {weights[:3]}..."
            raise ValueError(f"{problem}: set class_weight=None")
        part["class_weight"] = [1.0] * classes + weights[-1:]
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


def _adapt_objects_step(step: dict, masks: bool, background: bool) -> list[dict]:
    """Return a step of a detector's pipeline. With `background`, photos without objects pass."""
    changes: dict[str, Any] = {}
    name = type_name(step)
    if name == "LoadAnnotations":
        changes.update(with_bbox=True, with_mask=masks)
    elif name == "RandomCrop" and background:
        changes.update(allow_negative_crop=True)
    elif name == "FilterAnnotations":
        changes.update(by_mask=masks and step.get("by_mask", False))
        if background:
            changes.update(keep_empty=False)
    return [step | changes]


def _adapt_maps_step(step: dict) -> list[dict]:
    """Return a step of a segmentor's pipeline, for labels 0, 1, ... and the ignored label."""
    if type_name(step) == "LoadAnnotations":
        return [dict(type="LoadAnnotations")]
    return [step | dict(ignore_index=IGNORED) if "ignore_index" in step else step]


def _resize_randomly(steps: Pipeline) -> Pipeline:
    """Replace the one size of photos by random sizes, unless the pipeline has other steps too.

    Measured in docs/benchmark.md, "Fine-tuning".
    """
    only = {"LoadImageFromFile", "LoadAnnotations", "Resize", "RandomFlip", "PackDetInputs"}
    if {type_name(step) for step in steps} != only:
        return steps
    changed = []
    for step in steps:
        if type_name(step) == "Resize" and step.get("scale"):
            changed.append(dict(step, type="RandomResize", ratio_range=(0.67, 1.5)))
        else:
            changed.append(step)
    return changed
