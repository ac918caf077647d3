"""Metadata of an exported file, by which `run.py` and other programs run it. Values are JSON."""

import json
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..models import MIN_SIZE
from ..utils.config_data import tested_metainfo
from ..utils.config_parts import find_step, type_name
from ..utils.model_input import ModelInput
from ..version import __version__
from .traceable import list_stages

# Steps that `run.py` repeats, and options that must have a value.
STEPS: dict[str, dict[str, Any]] = dict(
    LoadImageFromFile=dict(to_float32=False, color_type="color", imdecode_backend="cv2"),
    Resize=dict(scale_factor=None, backend="cv2", interpolation="bilinear"),
    LoadAnnotations={},
    PackDetInputs={},
    PackSegInputs={},
)
PREPROCESSORS = ("DetDataPreprocessor", "SegDataPreProcessor")


def find_unsupported(cfg: Config) -> str | None:
    """Return the first step or option of a test that `run.py` does not repeat, or None."""
    inputs = ModelInput(cfg)
    for step in inputs.pipeline:
        name = type_name(step)
        if name not in STEPS:
            return f"{name} in the test pipeline"
        for option, value in STEPS[name].items():
            if step.get(option, value) != value:
                return f"{name}({option}={step[option]!r}) in the test pipeline"
    if [type_name(step) for step in inputs.pipeline].count("Resize") > 1:
        return "a second Resize in the test pipeline"
    preprocessor = inputs.preprocessor
    if not preprocessor or type_name(preprocessor) not in PREPROCESSORS:
        return f"data_preprocessor={preprocessor.get('type')}"
    size = (preprocessor.get("test_cfg") or {}).get("size")
    if size:
        return f"data_preprocessor.test_cfg.size={size}"
    is_slide = (cfg.model.get("test_cfg") or {}).get("mode") == "slide"
    return "test_cfg.mode='slide'" if is_slide else None


def model_metadata(cfg: Config, model: Any, outputs: list[str]) -> dict[str, str]:
    """Return the metadata of a model with the named outputs.

    Raises:
        ValueError: If the config's test set does not name all classes of the model.
    """
    inputs = ModelInput(cfg)
    mean, std = inputs.normalisation
    resize = find_step(inputs.pipeline, "Resize")
    if resize is not None:
        scale = resize.get("scale")
        sides = [scale, scale] if isinstance(scale, int) else scale  # width and height
        resize = dict(scale=sides, keep_ratio=resize.get("keep_ratio", False))
    classes = list(tested_metainfo(cfg)["classes"])
    facts: dict[str, Any] = dict(
        outputs=outputs,
        classes=classes,
        channel_order=inputs.channel_order,
        mean=mean,
        std=std,
        resize=resize,
        unsupported=find_unsupported(cfg),
        config=Path(cfg.filename or "").name,
        xcit_mm_version=__version__,
    )
    if cfg.default_scope == "mmdet":
        facts |= dict(
            task="instance segmentation" if model.with_mask else "object detection",
            mask_threshold=model.roi_head.test_cfg.mask_thr_binary if model.with_mask else None,
            **dict(pad_divisor=1, pad_value=0, min_side=1),  # the file pads the image itself
        )
        count = list_stages(getattr(model, "roi_head", model).bbox_head)[-1].num_classes
    else:
        facts |= dict(
            task="semantic segmentation",
            pad_divisor=(inputs.preprocessor.get("test_cfg") or {}).get("size_divisor") or 1,
            pad_value=inputs.preprocessor.get("pad_val", 0),
            min_side=MIN_SIZE,
            align_corners=model.align_corners,
            threshold=model.decode_head.threshold if model.out_channels == 1 else None,
        )
        count = max(model.out_channels, 2)  # one channel separates a class from the background
    if len(classes) != count:
        problem = f"{len(classes)} names ({classes[0]}, ...) for the {count} classes"
        fix = "correct metainfo.classes of the data set that is tested"
        raise ValueError(f"{problem} of the model: {fix}")
    return {name: json.dumps(fact) for name, fact in facts.items()}
