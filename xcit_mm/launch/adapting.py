"""A model for a fine-tuning, and its config adapted to the classes and labels of the data."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from ..datasets import IGNORED, CocoFile, Dataset
from ..datasets.headers import read_headers
from ..models import MIN_SIZE
from ..prediction.preprocessing import Preprocessing
from ..prediction.view import trained_scale
from ..utils.config_parts import iter_parts, type_name
from ..utils.configs import read_config
from ..utils.errors import ArgumentError
from ..weights.lookup import find_model

_TAKEN = "only detectors and segmentors whose heads have num_classes can be fine-tuned"
_WITHOUT_CLASSES = ("backbone", "neck", "data_preprocessor", "rpn_head")


def read_model(model: str | Path, checkpoint: str | Path | None) -> Config:
    """Read the config of a model to fine-tune, with the weights to start from as `load_from`.

    A config alone starts from the weights that it names itself.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If the model is neither a detector nor a segmentor.
    """
    config = str(model)
    if checkpoint or not config.endswith(".py"):
        config, checkpoint = find_model(model, checkpoint)
        if Path(checkpoint).is_file():
            checkpoint = str(Path(checkpoint).resolve())
    cfg = read_config(config)
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):
        raise ArgumentError("model", f"{model} is a {type_name(cfg.model)}: {_TAKEN}")
    cfg.load_from = checkpoint or cfg.get("load_from")
    return cfg


def adapt(cfg: Config, dataset: Dataset, boxes: bool) -> dict[str, Any]:
    """Adapt the config of a model to the classes and labels of a data set.

    Args:
        boxes: Whether to train boxes only, with a model that could predict masks.

    Returns:
        The new values of `model`, `train_pipeline` and `test_pipeline`, and for a detector the
        `metric`.

    Raises:
        KeyError: If a data set in the config has no pipeline, because it is a wrapper.
        ValueError: If the model cannot be fine-tuned on the labels.
    """
    model = cfg.model.to_dict()
    loaders = (cfg.train_dataloader, cfg.test_dataloader)
    training, test = (loader.dataset.to_dict()["pipeline"] for loader in loaders)
    metric = None
    if cfg.default_scope == "mmdet":
        has_masks = _choose_masks(model, dataset, boxes)
        metric = ["bbox", "segm"] if has_masks else ["bbox"]
        _load_objects([training, test], has_masks)
    else:
        preprocessor = model["data_preprocessor"]
        preprocessor["seg_pad_val"] = IGNORED
        head_types = map(type_name, iter_parts(model["decode_head"]))
        if "MaskFormerHead" not in head_types:  # mmseg's misplaces padded maps
            preprocessor["test_cfg"] = _padded_to_cells(preprocessor.get("test_cfg") or {})
        for step in iter_parts([training, test]):
            step.pop("reduce_zero_label", None)  # labels are 0, 1, ...
    heads = [part for key, part in model.items() if key not in _WITHOUT_CLASSES]
    _set_classes(heads, len(dataset.classes))
    for part in iter_parts([heads, training, test]):
        if "ignore_index" in part:
            part["ignore_index"] = IGNORED
    if cfg.load_from:  # which replaces the weights of the backbone
        model["backbone"]["init_cfg"] = None
    return dict(model=model, train_pipeline=training, test_pipeline=test, metric=metric)


def scale_of_photos(cfg: Config, dataset: Dataset) -> dict[str, float | None]:
    """Return the `large` setting for a model that is trained on photos.

    Its scale is the median factor by which the test pipeline resizes the training photos, of which
    at most a hundred are asked. It is None if the pipeline stretches them.
    """
    step = math.ceil(len(dataset.train.images) / 100)
    if isinstance(dataset.train, CocoFile):
        chosen: Sequence[Any] = dataset.train.images[::step]
    else:
        chosen = read_headers(dataset.train.paths[::step])
    sizes = [(image.height, image.width) for image in chosen]
    return dict(scale=median_scale(cfg, sizes), pixel_size=None)


def median_scale(cfg: Config, sizes: Sequence[tuple[int, int]]) -> float | None:
    """Return the median factor by which a test pipeline resizes images.

    Args:
        sizes: Height and width of each image.

    Returns:
        The factor, or None if the pipeline stretches most of the images.
    """
    preprocess = Preprocessing(cfg)
    factors = []
    for size, count in Counter(sizes).items():
        with suppress(ValueError):  # the rounding of a thin photo to pixels stretches it
            factors += [trained_scale(cfg, preprocess, size)] * count
    return round(float(np.median(factors)), 3) if 2 * len(factors) > len(sizes) else None


def _padded_to_cells(test_cfg: dict[str, Any]) -> dict[str, Any]:
    """Return mmseg's `test_cfg` that pads images to whole cells of the coarsest feature map.

    mmseg misplaces the map of an image of another size. It takes either a size or a divisor.
    """
    divisor = math.lcm(test_cfg.get("size_divisor") or 1, MIN_SIZE)
    size = dict(size=None) if "size" in test_cfg else {}
    return dict(size, size_divisor=divisor)


def _choose_masks(model: dict[str, Any], dataset: Dataset, boxes: bool) -> bool:
    """Return whether a detector will find masks.

    If it could, but the labels have none or the user wants boxes, its mask head is removed.
    """
    roi_head = model.get("roi_head") or {}
    if not ("panoptic_head" in model or model.get("mask_head") or roi_head.get("mask_head")):
        return False
    objects = dataset.train.annotations if isinstance(dataset.train, CocoFile) else []
    if not boxes and any(annotation.has_mask for annotation in objects):
        return True  # a check of the run names objects without masks
    if not roi_head:
        raise ValueError(f"{model['type']} needs masks: give data with masks, or another model")
    roi_head.update(mask_roi_extractor=None, mask_head=None)
    if model["type"] == "MaskRCNN":
        model["type"] = "FasterRCNN"
    return False


def _load_objects(pipelines: list[Any], has_masks: bool) -> None:
    """Let pipelines load boxes and, if wanted, masks, and keep photos without objects."""
    for step in iter_parts(pipelines):
        name = type_name(step)
        if name == "LoadAnnotations":
            step.update(with_bbox=True, with_mask=has_masks)
        elif name == "RandomCrop":
            step["allow_negative_crop"] = True
        elif name == "FilterAnnotations":  # mmdet's keep_empty=True drops photos without objects
            step.update(by_mask=has_masks and step.get("by_mask", False), keep_empty=False)


def _set_classes(heads: list[Any], classes: int) -> None:
    """Set the number of classes in heads. Raise ValueError if none has it."""
    has_classes = False
    for part in iter_parts(heads):
        for key in {"num_classes", "num_things_classes"} & part.keys():
            part[key] = classes
            has_classes = True
        weights = part.get("class_weight")
        if isinstance(weights, list) and set(weights[:-1]) == {1.0}:
            part["class_weight"] = [1.0] * classes + weights[-1:]  # the last is that of no object
    if not has_classes:
        raise ValueError(f"the model has no head with num_classes: {_TAKEN}")
