"""Preprocessing of a config's test pipeline, as metadata for the runtime and as a graph inside the file."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import mmcv
import numpy as np
import torch
from mmengine.config import Config

from ..utils.configs import data_preprocessor, tested_dataset, type_name
from .comparison import Drift, to_prediction
from .images import load_batch, sample_images, to_model_input
from .run import Model

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "PreprocessingDrift",
    "add_preprocessing",
    "check_preprocessing",
    "compare_preprocessing",
    "preprocessing_steps",
    "with_preprocessing",
]

PASSTHROUGH = ("LoadAnnotations", "PackDetInputs", "PackSegInputs")  # steps that do not change the image
# Supported steps. Options of `_REQUIRED` need these values if they are set, options of `_OPTIONAL` may have any.
_REQUIRED: dict[str, dict[str, Any]] = dict(
    LoadImageFromFile=dict(to_float32=False, color_type="color", imdecode_backend="cv2"),
    Resize=dict(scale_factor=None, backend="cv2", interpolation="bilinear"),
)
_OPTIONAL = dict(
    LoadImageFromFile=("backend_args", "file_client_args", "ignore_empty"),
    Resize=("scale", "keep_ratio", "clip_object_border"),
)
MAX_GREY_LEVELS = 1.001  # with the rounding of float32
# Of the detections. Few are compared, and objects at the padding move, but a wrong scale would lose all of them.
MAX_DETECTION_DRIFT = 0.5


def preprocessing_steps(cfg: Config) -> dict[str, Any]:
    """Describe the preprocessing of an RGB or BGR image by a config, besides its normalisation.

    Returns:
        `resize`, None or a dict of `scale` [width, height], `keep_ratio` and `interpolation`; `pad_divisor` and
        `pad_value` of the padding at the right and the bottom, after normalisation. For a pipeline with an unsupported
        step, `unknown` alone, which names the step.
    """
    try:
        return _steps(cfg)
    except _Unsupported as error:
        return dict(unknown=str(error))


class _Unsupported(Exception):
    pass


def _steps(cfg: Config) -> dict[str, Any]:
    resize = None
    for step in tested_dataset(cfg).get("pipeline", []):
        name = type_name(step)
        if name in PASSTHROUGH:
            continue
        if name not in _REQUIRED or (name == "Resize" and resize is not None):
            raise _Unsupported(f"{name} in the config's test pipeline")
        for key, value in step.items():
            if key != "type" and key not in _OPTIONAL[name] and value != _REQUIRED[name].get(key, ...):
                raise _Unsupported(f"{name}({key}={value!r}) in the config's test pipeline")
        if name == "Resize":
            scale = step.get("scale")
            if scale is None:
                raise _Unsupported("Resize without a scale in the config's test pipeline")
            scale = [scale, scale] if isinstance(scale, int) else list(scale)
            resize = dict(scale=scale, keep_ratio=step.get("keep_ratio", False), interpolation="bilinear")
    divisor, value = _padding(data_preprocessor(cfg))
    if (cfg.model.get("test_cfg") or {}).get("mode") == "slide":
        raise _Unsupported("test_cfg.mode='slide' in the config")
    return dict(resize=resize, pad_divisor=divisor, pad_value=value)


def _padding(preprocessor: dict) -> tuple[int, float]:
    """Return the divisor of the padded sides and the padding value of mmdet's or mmseg's data preprocessor in tests."""
    name = type_name(preprocessor) if preprocessor else None
    if name == "DetDataPreprocessor":
        return 1, 0  # a detector's file pads the image itself, since boxes are clipped before the padding
    if name != "SegDataPreProcessor":
        raise _Unsupported(f"data_preprocessor.type={name!r} in the config")
    test_cfg = preprocessor.get("test_cfg") or {}
    if test_cfg.get("size") is not None:
        raise _Unsupported(f"data_preprocessor.test_cfg.size={test_cfg['size']} in the config")
    return test_cfg.get("size_divisor") or 1, preprocessor.get("pad_val", 0)


def check_preprocessing(task: str, steps: dict[str, Any]) -> None:
    """Check that preprocessing steps can be added to the file of a model.

    Args:
        task: Task in the file's metadata, such as 'backbone'.
        steps: Result of `preprocessing_steps`.

    Raises:
        ValueError: If they cannot.
    """
    if task == "backbone" or not steps:
        raise ValueError(f"preprocessing can be added to whole detectors and segmentors, not to a {task}")
    if "unknown" in steps:
        raise ValueError(f"preprocessing cannot be added because of {steps['unknown']}: leave --with-preprocessing out")


def with_preprocessing(model: "ModelProto") -> "ModelProto":
    """Return an exported model whose input is an image's `pixels` (H, W, 3), RGB, uint8.

    The boxes of a detector are in these pixels; they may exceed the image by rounding. A segmentor returns
    `segmentation_map` (H, W), the classes as uint8, or int32 beyond 256 classes.

    Raises:
        ValueError: If the model is a backbone, or its metadata do not specify the preprocessing.
    """
    from onnx import compose

    from .preprocessing_graph import detector_graph, preprocessing_graph, segmentor_graph

    facts = {prop.key: prop.value for prop in model.metadata_props}
    check_preprocessing(facts.get("task", "file of another origin"), json.loads(facts.get("preprocessing", "{}")))
    outputs = [output.name for output in model.graph.output]
    if outputs == ["logits"]:
        after, outputs = segmentor_graph(model), ["segmentation_map"]
    else:
        after = detector_graph(model)
        model = _rename(model, "boxes", "model_boxes")  # `boxes` are those in pixels of the image
    before = compose.merge_models(preprocessing_graph(model), model, io_map=[("image", "image")])
    whole = compose.merge_models(
        before,
        after,
        io_map=[(value.name, value.name) for value in after.graph.input],
        outputs=outputs,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    del whole.opset_import[1:]  # the same version, from each part
    whole.graph.output.sort(key=lambda value: outputs.index(value.name))
    return whole


def _rename(model: "ModelProto", name: str, new_name: str) -> "ModelProto":
    """Return a copy of a model in which an output has another name."""
    renamed = type(model).FromString(model.SerializeToString())
    for node in renamed.graph.node:
        for names in (node.input, node.output):
            names[:] = [new_name if value == name else value for value in names]
    for output in renamed.graph.output:
        output.name = new_name if output.name == name else output.name
    return renamed


def add_preprocessing(path: Path) -> None:
    """Replace an exported file by `with_preprocessing` of it."""
    import onnx

    model = with_preprocessing(onnx.load(path))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


class PreprocessingDrift(NamedTuple):
    """Differences between a file that preprocesses images and torch, for which OpenCV resizes them.

    Attributes:
        images: Description of the compared images.
        grey_levels: Largest deviation of a preprocessed image.
        drift: Differences between the predictions.
    """

    images: str
    grey_levels: float
    drift: Drift

    def line(self) -> str:
        """Summarize the differences for a report."""
        return f"within {self.grey_levels:.1f} grey levels of OpenCV; {self.drift.line()} ({self.images})"


@torch.no_grad()
def compare_preprocessing(cfg: Config, model: Any, path: Path) -> PreprocessingDrift:
    """Compare a file that preprocesses images with torch, on images of the test set or else on synthetic images.

    Args:
        cfg: Config of mmdet or mmseg.
        model: Its model, in eval mode.
        path: File to compare.

    Raises:
        RuntimeError: If a preprocessed image deviates by more than a grey level, more than a fiftieth of the pixels
            change class, or more than half of the detections have no match.
    """
    import onnx
    from onnxruntime import InferenceSession

    from .preprocessing_graph import preprocessing_graph

    graph = preprocessing_graph(onnx.load(path)).SerializeToString()
    preprocess, runtime = InferenceSession(graph, providers=["CPUExecutionProvider"]), Model(path)
    unit = getattr(model.data_preprocessor, "std", torch.ones(())).numpy()  # absent without normalisation
    grey_levels, drift = 0.0, Drift()
    with TemporaryDirectory() as folder:
        description, images = sample_images(cfg, Path(folder))
        for image in images:
            pixels = mmcv.imread(image, channel_order="rgb")
            batch = load_batch(cfg, image)
            expected = to_model_input(model.data_preprocessor(batch, False), cfg).numpy()
            (found,) = preprocess.run(["image"], dict(pixels=pixels))
            if found.shape != expected.shape:
                raise RuntimeError(f"an image preprocessed in the file is {found.shape}, not {expected.shape}")
            grey_levels = max(float((np.abs(found - expected) * unit).max()), grey_levels)
            if not grey_levels <= MAX_GREY_LEVELS:
                raise RuntimeError(f"an image preprocessed in the file deviates by {grey_levels:.1f} grey levels")
            drift.add(runtime(pixels), to_prediction(model.test_step(batch)[0]))
    if drift.exceeds(MAX_DETECTION_DRIFT):
        raise RuntimeError(f"{drift.share:.1%} is found differently if the file preprocesses images")
    return PreprocessingDrift(description, grey_levels, drift)
