"""Metadata of an exported file, by which `run.py` and other programs run it. Values are JSON."""

import json
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..models import MIN_SIZE
from ..rasters.settings import trained_settings
from ..utils.configs import ModelInput, find_step, tested_metainfo, type_name
from ..version import __version__
from .traceable import list_stages

# Steps that `run.py` repeats, and options that must have a value. Others may have any value.
STEPS: dict[str, dict[str, Any]] = dict(
    LoadImageFromFile=dict(to_float32=False, color_type="color", imdecode_backend="cv2"),
    Resize=dict(scale_factor=None, backend="cv2", interpolation="bilinear"),
    LoadAnnotations={},
    PackDetInputs={},
    PackSegInputs={},
)
PREPROCESSORS = ("DetDataPreprocessor", "SegDataPreProcessor")


def find_unsupported(cfg: Config) -> str | None:
    """Return the first step or option of a model's test that `run.py` does not repeat, or None."""
    inputs = ModelInput(cfg)
    names = [type_name(step) for step in inputs.pipeline]
    for name, step in zip(names, inputs.pipeline, strict=True):
        if name not in STEPS:
            return f"{name} in the test pipeline"
        for option, value in STEPS[name].items():
            if step.get(option, value) != value:
                return f"{name}({option}={step[option]!r}) in the test pipeline"
    if names.count("Resize") > 1:
        return "a second Resize in the test pipeline"
    preprocessor = inputs.preprocessor
    if not preprocessor or type_name(preprocessor) not in PREPROCESSORS:
        return f"data_preprocessor={preprocessor.get('type')}"
    size = (preprocessor.get("test_cfg") or {}).get("size")
    if size:
        return f"data_preprocessor.test_cfg.size={size}"
    is_slide = (cfg.model.get("test_cfg") or {}).get("mode") == "slide"
    return "test_cfg.mode='slide'" if is_slide else None


def normalisation(inputs: ModelInput) -> tuple[list[float] | None, list[float] | None]:
    """Return mean and std by which the preprocessor or a step normalises."""
    step = inputs.preprocessor
    if step.get("mean") is None:
        step = find_step(inputs.pipeline, "Normalize") or {}
    return step.get("mean"), step.get("std")


def model_metadata(cfg: Config, model: Any, outputs: list[str]) -> dict[str, str]:
    """Return the metadata of a whole model or a backbone with the named outputs.

    Raises:
        ValueError: If the config's test set does not name all classes of the model.
    """
    inputs = ModelInput(cfg)
    mean, std = normalisation(inputs)
    facts = dict(
        task="backbone",
        outputs=outputs,
        min_side=MIN_SIZE,
        channel_order=inputs.channel_order,
        mean=mean,
        std=std,
        config=Path(cfg.filename or "").name,
        xcit_mm_version=__version__,
    )
    if hasattr(model, "backbone"):
        resize = find_step(inputs.pipeline, "Resize")
        if resize is not None:
            scale = resize.get("scale")
            sides = [scale, scale] if isinstance(scale, int) else scale  # width and height
            resize = dict(scale=sides, keep_ratio=resize.get("keep_ratio", False))
        facts |= dict(
            classes=_class_names(cfg, model),
            resize=resize,
            raster=trained_settings(cfg) or None,  # how rasters were read for training
            unsupported=find_unsupported(cfg),
        )
        facts |= _describe_results(cfg, inputs, model)  # with another task
    return {name: json.dumps(fact) for name, fact in facts.items()}


def _describe_results(cfg: Config, inputs: ModelInput, model: Any) -> dict[str, Any]:
    """Return task and padding of a whole model, and how its outputs become results."""
    if cfg.default_scope == "mmdet":
        task = "instance segmentation" if model.with_mask else "object detection"
        threshold = model.roi_head.test_cfg.mask_thr_binary if model.with_mask else None
        # The file pads the image itself.
        padding = dict(pad_divisor=1, pad_value=0, min_side=1)
        return dict(padding, task=task, mask_threshold=threshold)
    preprocessor = inputs.preprocessor
    return dict(
        task="semantic segmentation",
        pad_divisor=(preprocessor.get("test_cfg") or {}).get("size_divisor") or 1,
        pad_value=preprocessor.get("pad_val", 0),
        align_corners=model.align_corners,
        threshold=model.decode_head.threshold if model.out_channels == 1 else None,
    )


def _class_names(cfg: Config, model: Any) -> list[str]:
    if hasattr(model, "out_channels"):
        count = max(model.out_channels, 2)  # one channel separates a class from the background
    else:
        head = model.roi_head.bbox_head if hasattr(model, "roi_head") else model.bbox_head
        count = list_stages(head)[-1].num_classes
    names = list(tested_metainfo(cfg)["classes"])
    if len(names) != count:
        problem = f"{len(names)} names ({names[0]}, ...) for the {count} classes of the model"
        raise ValueError(f"{problem}: correct metainfo.classes of the data set that is tested")
    return names
