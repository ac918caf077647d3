"""Metadata of an exported file: what `run.py` and other programs must know to run it."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..models import MIN_SIZE
from ..utils.config_data import tested_metainfo
from ..utils.config_parts import find_step, type_name
from ..utils.model_input import ModelInput
from ..version import __version__
from .traceable import list_stages

# Steps that `run.py` repeats, each at most once, and options that must have a value.
STEPS: dict[str, dict[str, Any]] = dict(
    LoadImageFromFile=dict(to_float32=False, color_type="color", imdecode_backend="cv2"),
    Resize=dict(scale_factor=None, backend="cv2", interpolation="bilinear"),
    LoadAnnotations={},
    PackDetInputs={},
    PackSegInputs={},
    DetDataPreprocessor={},
    SegDataPreProcessor={},
)


def describe_model(cfg: Config, model: Any, outputs: list[str]) -> dict[str, Any]:
    """Return the metadata of a model by their names in docs/deployment.md.

    Args:
        model: The detector or segmentor of the config.
        outputs: Names of the file's outputs.

    Raises:
        ValueError: If the config's test set does not name all classes of the model.
    """
    inputs = ModelInput(cfg)
    mean, std = inputs.normalisation
    facts: dict[str, Any] = dict(
        outputs=outputs,
        channel_order=inputs.channel_order,
        bands=(inputs.raster_step or {}).get("bands"),
        mean=mean,
        std=std,
        resize=_describe_resize(inputs),
        unsupported=find_unsupported(cfg),
        config=Path(cfg.filename).name,
        xcit_mm_version=__version__,
    )
    if cfg.default_scope == "mmdet":
        facts |= _describe_detector(model)
        count = list_stages(getattr(model, "roi_head", model).bbox_head)[-1].num_classes
    else:
        facts |= _describe_segmentor(model, inputs)
        count = max(model.out_channels, 2)  # one channel separates a class from the background
    facts["classes"] = list(tested_metainfo(cfg)["classes"])
    named = len(facts["classes"])
    if named != count:
        problem = f"the test data set names {named} classes ({facts['classes'][0]}, ...)"
        raise ValueError(f"{problem}, and the model has {count}: correct its metainfo.classes")
    return facts


def find_unsupported(cfg: Config) -> str | None:
    """Return the first step or option of a test that `run.py` does not repeat, or None."""
    inputs = ModelInput(cfg)
    if not inputs.preprocessor:
        return "data_preprocessor=None"
    supported = dict(STEPS)
    for step in (*inputs.pipeline, inputs.preprocessor):
        name = type_name(step)
        options = supported.pop(name, None)
        if options is None:
            return name
        for option, value in options.items():
            if step.get(option, value) != value:
                return f"{name}({option}={step[option]!r})"
    size = (inputs.preprocessor.get("test_cfg") or {}).get("size")
    if size:
        return f"data_preprocessor.test_cfg.size={size}"
    is_slide = (cfg.model.get("test_cfg") or {}).get("mode") == "slide"
    return "test_cfg.mode='slide'" if is_slide else None


def _describe_resize(inputs: ModelInput) -> dict[str, Any] | None:
    step = find_step(inputs.pipeline, "Resize")
    if step is None:
        return None
    scale = step.get("scale")
    sides = [scale, scale] if isinstance(scale, int) else scale  # width and height
    return dict(scale=sides, keep_ratio=step.get("keep_ratio", False))


def _describe_detector(model: Any) -> dict[str, Any]:
    has_masks = model.with_mask
    is_padded = model.data_preprocessor.pad_size_divisor % MIN_SIZE == 0
    return dict(
        task="instance segmentation" if has_masks else "object detection",
        mask_threshold=model.roi_head.test_cfg.mask_thr_binary if has_masks else None,
        pad_divisor=1,  # the file pads the image itself
        pad_value=0,
        min_side=1 if is_padded else MIN_SIZE,
    )


def _describe_segmentor(model: Any, inputs: ModelInput) -> dict[str, Any]:
    padding = inputs.preprocessor.get("test_cfg") or {}
    return dict(
        task="semantic segmentation",
        pad_divisor=padding.get("size_divisor") or 1,
        pad_value=inputs.preprocessor.get("pad_val", 0),
        min_side=MIN_SIZE,
        align_corners=model.align_corners,
        threshold=model.decode_head.threshold if model.out_channels == 1 else None,
    )
