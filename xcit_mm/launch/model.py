"""Model and pipelines of a config, for the classes and labels of another data set."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from PIL import Image, UnidentifiedImageError

from ..models import XCiT
from ..utils.configs import backbone_class, leaf_datasets, type_name
from ..utils.errors import preview
from .dataset import Dataset, Objects
from .maps import IGNORED

TAKEN = (
    "--from takes detectors and segmentors whose heads have num_classes, such as Mask R-CNN, "
    "RetinaNet, Mask2Former, Semantic FPN and UperNet"
)
_WRAPPERS = ("RepeatDataset", "ClassBalancedDataset")  # whose images pass the inner pipeline only
_WITHOUT_CLASSES = ("backbone", "neck", "data_preprocessor", "rpn_head")


def find_pipelines(model: str, cfg: Config) -> list[list[dict]]:
    """Return the steps of training and test of a model that can be fine-tuned.

    Raises:
        ValueError: If it cannot, by its data sets.
    """
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):
        raise ValueError(f"{model} is a {type_name(cfg.model)}: {TAKEN}")
    pipelines = []
    for split in ("train", "test"):
        loader = cfg.get(f"{split}_dataloader")
        dataset = loader.dataset.to_dict() if loader else None
        inner = list(leaf_datasets(dataset)) if dataset else []
        wrapper = type_name(dataset) if dataset else f"no {split}_dataloader"
        if len(inner) != 1 or (inner[0] is not dataset and wrapper not in _WRAPPERS):
            raise ValueError(f"{model} has {wrapper}, --from takes one data set with a pipeline")
        pipelines.append(inner[0]["pipeline"])
    return pipelines


def has_xcit(cfg: Config) -> bool:
    """Return whether the backbone of a config is an XCiT."""
    return backbone_class(cfg) is XCiT


def adapt_detector(
    model: str, cfg: ConfigDict, dataset: Dataset[Objects], boxes: bool
) -> tuple[dict[str, Any], bool]:
    """Return the changes of a detector's config for a data set, and whether it predicts masks.

    Raises:
        ValueError: If some annotations lack masks, or the model cannot be fine-tuned on them.
    """
    changed = cfg.to_dict()
    changed["backbone"]["init_cfg"] = None
    roi_head = changed.get("roi_head") or {}
    masks = "panoptic_head" in changed or bool(
        changed.get("mask_head") or roi_head.get("mask_head")
    )
    if masks and (boxes or not have_masks(dataset)):
        if roi_head.get("type") not in ("StandardRoIHead", "CascadeRoIHead"):
            raise ValueError(f"{model} needs masks: give data with masks, or another detector")
        roi_head |= dict(mask_roi_extractor=None, mask_head=None)
        if changed["type"] == "MaskRCNN":
            changed["type"] = "FasterRCNN"
        masks = False
    _set_classes(model, changed, len(dataset.classes))
    return difference(cfg.to_dict(), changed), masks


def check_bands(dataset: Dataset[Objects]) -> None:
    """Raise ValueError for a tif that OpenCV would not read as it is meant."""
    paths = [photo.path for objects in dataset.parts for photo in objects.photos]
    for path in paths:
        is_tif = path.suffix.lower() in (".tif", ".tiff")
        if is_tif and _image_mode(path) not in ("L", "P", "RGB"):
            problem = f"{path} may have many bands or 16 bits"
            raise ValueError(f"{problem}: write a config as in docs/bands.md")


def _image_mode(path: Path) -> str | None:
    with suppress(UnidentifiedImageError), Image.open(path) as image:
        return image.mode
    return None


def have_masks(dataset: Dataset[Objects]) -> bool:
    """Return whether the objects have masks.

    Raises:
        ValueError: If only some have. It names those without.
    """
    count = 0
    without = []
    for photo in [photo for objects in dataset.parts for photo in objects.photos]:
        count += len(photo.shapes)
        for shape in photo.shapes:
            if not shape.has_mask:
                without.append(f"{shape.extras.get('id', shape.label)} of {photo.path.name}")
    if 0 < len(without) < count:
        problem = f"{len(without)} of {count} objects have no mask: {preview(without)}"
        raise ValueError(f"{problem}: draw or remove them, or train boxes alone by --boxes")
    return not without


def adapt_segmentor(model: str, cfg: ConfigDict, classes: int) -> dict[str, Any]:
    """Return the changes of a segmentor's config for the number of classes."""
    changed = cfg.to_dict()
    changed["backbone"]["init_cfg"] = None
    if changed.get("pretrained"):
        changed["pretrained"] = None
    changed["data_preprocessor"] |= dict(seg_pad_val=IGNORED)
    _set_classes(model, changed, classes)
    return difference(cfg.to_dict(), changed)


def _set_classes(model: str, changed: dict[str, Any], classes: int) -> None:
    heads = {key: part for key, part in changed.items() if key not in _WITHOUT_CLASSES}
    if not _set_class_counts(model, heads, classes) or "language_model" in changed:
        raise ValueError(f"{model} is a {changed['type']} without num_classes: {TAKEN}")


def _set_class_counts(model: str, part: Any, classes: int) -> int:
    """Change the number of classes in all heads of a part, and return how many heads have it."""
    if isinstance(part, list | tuple):
        return sum(_set_class_counts(model, item, classes) for item in part)
    if not isinstance(part, dict):
        return 0
    count = sum(_set_class_counts(model, value, classes) for value in part.values())
    for key in ("num_classes", "num_things_classes"):
        if key in part:
            count += 1
            part[key] = classes
    if part.get("out_channels") == 1:  # a threshold divides two classes
        part["out_channels"] = None
    if part.get("num_stuff_classes"):
        raise ValueError(f"{model} also segments stuff: {TAKEN}")
    if "ignore_index" in part:
        part["ignore_index"] = IGNORED
    weights = part.get("class_weight")
    if isinstance(weights, list):
        # Mask2Former's last weight is that of no object.
        if set(weights[:-1]) != {1.0}:
            raise ValueError(
                f"{model} weights its classes by {weights[:3]}...: set class_weight=None"
            )
        part["class_weight"] = [1.0] * classes + weights[-1:]
    return count


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return what mmengine has to merge into a config."""
    changes = {}
    for key, value in new.items():
        former = old.get(key)
        if isinstance(value, dict) and isinstance(former, dict):
            inner = difference(former, value)
            if inner:
                changes[key] = inner
        elif key not in old or value != former:
            changes[key] = value
    return changes


def adapt_objects(steps: Sequence[dict], masks: bool, background: bool) -> list[dict]:
    """Return the steps of a detector's pipeline. With `background`, photos without objects pass."""

    def adapt(step: dict) -> dict:
        name = type_name(step)
        if name == "LoadAnnotations":
            return step | dict(with_bbox=True, with_mask=masks)
        if background and name == "RandomCrop":
            return step | dict(allow_negative_crop=True)
        if name == "FilterAnnotations":
            step = step | dict(by_mask=masks and step.get("by_mask", False))
            return step | dict(keep_empty=False) if background else step
        return step

    return _adapt_steps(steps, adapt)


def adapt_maps(steps: Sequence[dict]) -> list[dict]:
    """Return the steps of a segmentor's pipeline, for labels 0, 1, ... and the ignored label."""

    def adapt(step: dict) -> dict:
        if type_name(step) == "LoadAnnotations":
            return dict(type="LoadAnnotations")
        return step | dict(ignore_index=IGNORED) if "ignore_index" in step else step

    return _adapt_steps(steps, adapt)


def _adapt_steps(steps: Sequence[Any], adapt: Callable[[dict], dict]) -> list[Any]:
    """Change steps, also those of RandomChoice, which has lists of steps."""
    adapted: list[Any] = []
    for step in steps:
        if isinstance(step, dict):
            inner = step.get("transforms") if type_name(step) != "Albu" else None
            step = step | dict(transforms=_adapt_steps(inner, adapt)) if inner else step
            adapted.append(adapt(step))
        else:
            adapted.append(_adapt_steps(step, adapt))
    return adapted
