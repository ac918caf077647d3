"""Preprocessing of a config's test pipeline, as metadata for the runtime and as a graph inside the file."""

from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate

from ..prediction.predictor import Preprocessing
from ..utils.configs import data_preprocessor, tested_dataset, type_name
from .comparison import Drift, to_detections
from .images import file_pads, sample_images, to_model_input
from .runtime import Model, Segmentation

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
    resize, where = None, "in the config's test pipeline"
    for step in tested_dataset(cfg).get("pipeline", []):
        name = type_name(step)
        if name in PASSTHROUGH:
            continue
        if name not in _REQUIRED or (name == "Resize" and resize is not None):
            return dict(unknown=f"{name} {where}")
        for key, value in step.items():
            if key != "type" and key not in _OPTIONAL[name] and value != _REQUIRED[name].get(key, ...):
                return dict(unknown=f"{name}({key}={value!r}) {where}")
        if name == "Resize":
            scale = step.get("scale")
            if scale is None:
                return dict(unknown=f"Resize without a scale {where}")
            scale = [scale, scale] if isinstance(scale, int) else list(scale)
            resize = dict(scale=scale, keep_ratio=step.get("keep_ratio", False), interpolation="bilinear")
    preprocessor = data_preprocessor(cfg)
    kind, test_cfg = type_name(preprocessor) if preprocessor else None, preprocessor.get("test_cfg") or {}
    if kind not in ("DetDataPreprocessor", "SegDataPreProcessor"):
        return dict(unknown=f"data_preprocessor.type={kind!r} in the config")
    if test_cfg.get("size") is not None:
        return dict(unknown=f"data_preprocessor.test_cfg.size={test_cfg['size']} in the config")
    if file_pads(cfg):
        return dict(resize=resize, pad_divisor=1, pad_value=0)
    divisor = test_cfg.get("size_divisor") or 1
    return dict(resize=resize, pad_divisor=divisor, pad_value=preprocessor.get("pad_val", 0))


def add_preprocessing(path: Path) -> None:
    """Change an exported file so that its input is an image's `pixels` (H, W, 3), RGB, uint8.

    The boxes of a detector are in these pixels; they may exceed the image by rounding. A segmentor returns
    `segmentation_map` (H, W), the classes as uint8, or int32 beyond 256 classes.
    """
    import onnx

    from .preprocessing_graph import detector_graph, preprocessing_graph, segmentor_graph

    model = onnx.load(path)
    outputs = [output.name for output in model.graph.output]
    if outputs == ["logits"]:
        after, outputs = segmentor_graph(model), ["segmentation_map"]
    else:
        after = detector_graph(model)
        for node in model.graph.node:  # `boxes` are those in pixels of the image
            for names in (node.input, node.output):
                names[:] = ["model_boxes" if name == "boxes" else name for name in names]
        model.graph.output[outputs.index("boxes")].name = "model_boxes"
    before = onnx.compose.merge_models(preprocessing_graph(model), model, io_map=[("image", "image")])
    whole = onnx.compose.merge_models(
        before,
        after,
        io_map=[(value.name, value.name) for value in after.graph.input],
        outputs=outputs,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    del whole.opset_import[1:]  # the same version, from each part
    whole.graph.output.sort(key=lambda value: outputs.index(value.name))
    onnx.checker.check_model(whole, full_check=True)
    onnx.save(whole, path)


@torch.no_grad()
def compare_preprocessing(cfg: Config, model: Any, path: Path) -> str:
    """Compare a file that preprocesses images with torch, for which OpenCV resizes them, and return a summary.

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
    preprocessing, grey_levels, drift = Preprocessing(cfg), 0.0, Drift()
    description, images = sample_images(cfg)
    for sample in images:
        if isinstance(sample, str):
            image = mmcv.imread(sample)
        else:
            image = (sample[0].permute(1, 2, 0) * 64 + 128).clamp(0, 255).byte().numpy()
        pixels = np.ascontiguousarray(image[..., ::-1])
        batch = pseudo_collate([preprocessing(image)])
        expected = to_model_input(model.data_preprocessor(batch, False), cfg).numpy()
        (found,) = preprocess.run(["image"], dict(pixels=pixels))
        if found.shape != expected.shape:
            raise RuntimeError(f"an image preprocessed in the file is {found.shape}, not {expected.shape}")
        grey_levels = max(float((np.abs(found - expected) * unit).max()), grey_levels)
        if not grey_levels <= MAX_GREY_LEVELS:
            raise RuntimeError(f"an image preprocessed in the file deviates by {grey_levels:.1f} grey levels")
        (predicted,) = model.test_step(batch)
        if "pred_sem_seg" in predicted:
            drift.add(runtime(pixels), Segmentation(predicted.pred_sem_seg.data[0].numpy()))
        else:
            drift.add(runtime(pixels), to_detections(predicted.pred_instances))
    if drift.exceeds(MAX_DETECTION_DRIFT):
        raise RuntimeError(f"{drift.share:.1%} is found differently if the file preprocesses images")
    return f"within {grey_levels:.1f} grey levels of OpenCV; {drift.line()} ({description})"
