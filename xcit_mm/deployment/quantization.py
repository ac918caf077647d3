"""int8: static quantisation of an exported file by calibration images, with its speed."""

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .formats import read_onnx
from .images import model_inputs, tested_paths
from .precision import PrecisionReport
from .runtime.results import option_inputs

MAX_LOSS = 0.5  # points of AP or mIoU, beyond which the report warns
OPERATORS = ("Conv", "Gemm", "MatMul")  # operators with an int8 kernel on CPUs
# Modules that stay in float32: products of channels decide over all tokens, positions are computed once, the stem and
# depthwise convolutions take little time, and the outputs of the last layers are logits and offsets of boxes.
FLOAT32_NODES = re.compile(
    r"\.attn\b|\.pos_embeder\b|\.patch_embed\b|\.local_mp\b|"
    r"\.(conv_seg|rpn_cls|rpn_reg|fc_cls|fc_reg|conv_logits|retina_cls|retina_reg)/"
)


def write_int8(cfg: Config, model: Any, path: Path, out: Path, paths: list[str], count: int | None) -> PrecisionReport:
    """Write the float32 file `path` in int8 to `out`, calibrated by the images at `paths`.

    `count` images of the test set will be evaluated, or all.
    """
    layers, all_layers = quantize(path, out, model_inputs(cfg, model, paths))
    shared = {*map(os.path.realpath, paths)}.intersection(map(os.path.realpath, tested_paths(cfg, count)))
    image = torch.from_numpy(next(model_inputs(cfg, model, paths)))
    height, width = image.shape[2:]
    notes, times = [f"{layers} of {all_layers} layers, calibrated by {len(paths)} images"], {}
    if shared:
        notes.append(f"WARNING: {len(shared)} evaluated images were calibrated with, so the loss is too small")
    for threads in (1, 2):
        runs = [read_onnx(file, threads) for file in (path, out)]
        before, after = milliseconds(runs, image, repeats=7)
        times[threads] = dict(float32=before, int8=after)
        speed = f"{after:.0f} ms (float32: {before:.0f}): {before / after:.2f} times as fast"
        notes.append(f"{speed} ({height}x{width}, {threads} thread{'s' * (threads > 1)})")
    details = dict(
        layers=layers,
        all_layers=all_layers,
        calibration_images=len(paths),
        shared_images=len(shared),
        milliseconds=times,
        size=(height, width),
    )
    return PrecisionReport("int8", details, notes, MAX_LOSS)


def quantize(path: Path, out: Path, images: Iterable[np.ndarray]) -> tuple[int, int]:
    """Write an exported file with its layers in int8, weights per channel, activations by their calibrated range.

    The int8 file has the standard operators QuantizeLinear and DequantizeLinear around each layer.

    Returns:
        Number of quantised layers, and of all layers.
    """
    import onnx
    from onnxruntime import set_default_logger_severity
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(samples, None)
            return None if image is None else dict(image=image, **options)

    set_default_logger_severity(3)  # the quantizer's sessions would warn of optional inputs
    model = onnx.load(path)
    constants, samples = {tensor.name for tensor in model.graph.initializer}, iter(images)
    # The layers of the masks have to get objects from every image.
    options = option_inputs(dict(score_thr=0)) if "score_thr" in constants else {}
    layers = [
        node.name for node in model.graph.node if node.op_type in OPERATORS and not constants.isdisjoint(node.input)
    ]
    chosen = [name for name in layers if not FLOAT32_NODES.search(name)]
    if not chosen:
        raise ValueError("the model has no layer to quantise: leave --int8 out")
    quantize_static(
        model,
        out,
        Reader(),
        op_types_to_quantize=list(OPERATORS),
        nodes_to_quantize=chosen,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Products without a quantised output give float32, to which their bias is added.
        extra_options=dict(OpTypesToExcludeOutputQuantization=["Gemm", "MatMul"]),
    )
    quantized = onnx.load(out)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(model.metadata_props)
    used = {node.domain for node in quantized.graph.node}
    opsets = [opset for opset in quantized.opset_import if opset.domain in used]
    del quantized.opset_import[:]
    quantized.opset_import.extend(opsets)
    onnx.checker.check_model(quantized, full_check=True)
    onnx.save(quantized, out)
    return len(chosen), len(layers)


def milliseconds(runs: Sequence[Callable[[Tensor], Any]], image: Tensor, repeats: int) -> list[float]:
    """Return median times of functions of an image. They take turns, so that other load affects all of them alike."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(1 + repeats):  # the first warms up
        for run, values in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run(image)
            values.append(time.perf_counter() - start)
    return [1000 * median(values[1:]) for values in seconds]
