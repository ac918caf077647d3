"""int8: static quantisation of an exported file by calibration images, with a report of accuracy and speed."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .comparison import Drift, compare_files
from .evaluation import MAIN_METRICS, Scores, evaluate_files, points
from .formats import add_metadata, megabytes, read_onnx
from .images import model_inputs, sample_inputs, tested_paths

__all__ = ["Int8Report", "losses_in_points", "milliseconds", "quantize", "write_int8"]

THRESHOLD = "score_threshold"  # a detector's constant
MAX_LOSS = 0.5  # points of AP or mIoU, beyond which the report warns
OPERATORS = ("Conv", "Gemm", "MatMul")  # operators with an int8 kernel on CPUs
# Modules that stay in float32: products of channels decide over all tokens, positions are computed once, the stem and
# depthwise convolutions take little time, and the outputs of the last layers are logits and offsets of boxes.
FLOAT32_NODES = re.compile(
    r"\.attn\b|\.pos_embeder\b|\.patch_embed\b|\.local_mp\b|"
    r"\.(conv_seg|rpn_cls|rpn_reg|fc_cls|fc_reg|conv_logits|retina_cls|retina_reg)/"
)


class Int8Report(NamedTuple):
    """Comparison of an int8 file with its float32 file.

    Attributes:
        layers: Number of layers computed in int8.
        all_layers: Number of convolutions and matrix products with constant weights.
        calibration_images: Number of calibration images.
        shared_images: Number of calibration images that are also evaluated.
        drift: Differences between the predictions for the images of the test set that `images` describes.
        images: Description of these images.
        evaluated: Number of images of the test set.
        scores: Scores of torch and both files.
        losses: Losses of AP or mIoU against the float32 file, in points.
        milliseconds: For each number of threads the median time of an image in each file.
        size: Height and width of this image.
        megabytes: Size of each file.
    """

    layers: int
    all_layers: int
    calibration_images: int
    shared_images: int
    drift: Drift
    images: str
    evaluated: int
    scores: Scores
    losses: dict[str, float]
    milliseconds: dict[int, dict[str, float]]
    size: tuple[int, int]
    megabytes: dict[str, float]

    def lines(self) -> list[str]:
        """Summarize the comparison."""
        images = f"{self.layers} of {self.all_layers} layers, calibrated by {self.calibration_images} images"
        lines = [images + "; {float32:.1f} to {int8:.1f} MB".format(**self.megabytes)]
        lines.append(f"{self.drift.line()} ({self.images})")
        if self.shared_images:
            lines.append(
                f"WARNING: {self.shared_images} evaluated images were calibrated with, so the loss is too small"
            )
        for name, loss in self.losses.items():
            scores = "{int8:.4f} (float32: {float32:.4f})".format(**self.scores[name])
            warning = f", a loss of more than {MAX_LOSS}" if round(loss, 6) > MAX_LOSS else ""
            lines.append(f"{name} {scores}: {-loss:+.2f} points on {self.evaluated} images{warning}")
        for threads, times in self.milliseconds.items():
            speed = "{int8:.0f} ms (float32: {float32:.0f})".format(**times)
            ratio = f"{times['float32'] / times['int8']:.2f} times as fast"
            size = "{}x{}".format(*self.size)
            lines.append(f"{speed}: {ratio} ({size}, {threads} thread{'s' * (threads > 1)})")
        return lines

    def to_json(self) -> str:
        """Return the value of the file's metadata."""
        return json.dumps(self._asdict() | dict(drift=dict(asdict(self.drift), share=self.drift.share)))


def losses_in_points(scores: Scores) -> dict[str, float]:
    """Return the losses of int8 against float32, of AP or mIoU or else of all metrics, in points of 100."""
    main = [name for name in scores if name.endswith(MAIN_METRICS)] or list(scores)
    return {name: points(name, scores[name]["float32"] - scores[name]["int8"]) for name in main}


def write_int8(cfg: Config, model: Any, path: Path, out: Path, paths: list[str], count: int | None) -> Int8Report:
    """Write the float32 file `path` in int8 to `out`, calibrated by the images at `paths`, and compare both.

    The report is added to the new file's metadata. Both are evaluated on `count` images of the test set, or on all.
    """
    layers, all_layers = quantize(path, out, model_inputs(cfg, model, paths))
    files = dict(float32=path, int8=out)
    runs = {name: read_onnx(file) for name, file in files.items()}
    description, samples = sample_inputs(cfg, model)
    drift = compare_files(model, samples, runs["int8"], runs["float32"])
    shared = {*map(os.path.realpath, paths)}.intersection(map(os.path.realpath, tested_paths(cfg, count)))
    evaluated, scores = evaluate_files(cfg, model, runs, count)
    image = torch.from_numpy(next(model_inputs(cfg, model, paths)))
    times = {}
    for threads in (1, 2):
        timed = [read_onnx(file, threads=threads) for file in files.values()]
        times[threads] = dict(zip(files, milliseconds(timed, image, repeats=7), strict=True))
    report = Int8Report(
        layers=layers,
        all_layers=all_layers,
        calibration_images=len(paths),
        shared_images=len(shared),
        drift=drift,
        images=description,
        evaluated=evaluated,
        scores=scores,
        losses=losses_in_points(scores),
        milliseconds=times,
        size=(image.shape[2], image.shape[3]),
        megabytes=megabytes(**files),
    )
    add_metadata(out, "int8", report.to_json())
    return report


def quantize(path: Path, out: Path, images: Iterable[np.ndarray]) -> tuple[int, int]:
    """Write an exported file with its layers in int8, weights per channel, activations by their calibrated range.

    The int8 file has the standard operators QuantizeLinear and DequantizeLinear around each layer.

    Returns:
        Number of quantised layers, and of all layers.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    inputs = (dict(image=image) for image in images)

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(inputs, None)

    model = onnx.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        if node.op_type in OPERATORS and not constants.keys().isdisjoint(node.input)
    ]
    chosen = [name for name in layers if not FLOAT32_NODES.search(name)]
    if not chosen:
        raise ValueError("the model has no layer to quantise: leave --int8 out")
    threshold = onnx.TensorProto()
    if THRESHOLD in constants:  # the layers of the masks have to get objects from every image
        threshold.CopyFrom(constants[THRESHOLD])
        constants[THRESHOLD].CopyFrom(onnx.numpy_helper.from_array(np.zeros(1, np.float32), THRESHOLD))
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
    for tensor in quantized.graph.initializer:
        if tensor.name == THRESHOLD:
            tensor.CopyFrom(threshold)
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
