"""Conversion of exported files to half precision, for GPUs, with a report of the differences."""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .comparison import Drift, compare_files
from .evaluation import Scores, evaluate_files, score_lines
from .formats import add_metadata, megabytes, read_onnx
from .images import sample_inputs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Float16Report", "to_float16", "write_float16"]

MAX_VALUE = 65504  # of float16
MAX_DETECTION_DRIFT = 0.1  # boxes that overlap nearly as much as NMS allows may change places
# Nodes outside of modules decode and select boxes and resize logits, and the positional encoding computes with pixels:
# from 1024 on, float16 has whole pixels only.
FLOAT32_NODES = re.compile(r"^[^.]*/|\.pos_embeder/")


class Float16Report(NamedTuple):
    """Comparison of a float16 file with its float32 file, both on a CPU.

    Attributes:
        images: Description of the compared images.
        drift: Differences between the predictions.
        peak: Largest absolute value that the file stores in float16.
        megabytes: Size of each file.
        evaluated: Number of images of the test set that were evaluated.
        scores: Scores of torch and both files.
    """

    images: str
    drift: Drift
    peak: float
    megabytes: dict[str, float]
    evaluated: int
    scores: Scores

    def lines(self) -> list[str]:
        """Summarize the comparison."""
        size = "{float32:.1f} to {float16:.1f} MB".format(**self.megabytes)
        line = f"{size}; on the CPU, {self.drift.line()}, values up to {self.peak:.0f} ({self.images})"
        return [line, *score_lines(self.scores)]

    def to_json(self) -> str:
        """Return the value of the file's metadata."""
        drift = dict(asdict(self.drift), share=self.drift.share)
        return json.dumps(self._asdict() | dict(drift=drift, run_on="CPU"))


def write_float16(cfg: Config, model: Any, path: Path, out: Path, count: int | None) -> Float16Report:
    """Write the float32 file `path` in half precision to `out`, and compare both.

    The report is added to the new file's metadata. Both are evaluated on `count` images of the test set, if given.

    Raises:
        RuntimeError: If a value exceeds float16's maximum, or more than a fiftieth of the pixels or a tenth of the
            detections differ.
    """
    import onnx

    converted = to_float16(onnx.load(path))
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, out)
    runs = dict(float32=read_onnx(path), float16=read_onnx(out))
    names = _half_tensors(converted)
    ranges = out.with_name(f"ranges-{out.name}")
    onnx.save(_with_ranges(onnx.load(path), names), ranges)
    description, images = sample_inputs(cfg, model)
    peak = _largest_value(read_onnx(ranges), names, images)
    ranges.unlink()
    drift = compare_files(model, images, runs["float16"], runs["float32"])
    if drift.exceeds(MAX_DETECTION_DRIFT):
        raise RuntimeError(f"{drift.share:.1%} is found differently in float16: leave --fp16 out")
    evaluated, scores = (0, {}) if count is None else evaluate_files(cfg, model, runs, count)
    report = Float16Report(description, drift, peak, megabytes(float32=path, float16=out), evaluated, scores)
    add_metadata(out, "fp16", report.to_json())
    return report


def _largest_value(ranges: Callable, names: list[str], images: list[Tensor]) -> float:
    """Return the largest absolute value of the half tensors, computed by the float32 file.

    onnxruntime's CPU provider stores few halves, so that a value which overflows on a GPU does not overflow there.
    """
    peaks = torch.zeros(len(names))
    for image in images:
        peaks = peaks.maximum(ranges(image)[0])
    if peaks.max() > MAX_VALUE:
        name, value = names[int(peaks.argmax())], float(peaks.max())
        raise RuntimeError(f"{name} reaches {value:.3g}, above float16's maximum of {MAX_VALUE}: leave --fp16 out")
    return float(peaks.max())


def _half_tensors(model: "ModelProto") -> list[str]:
    """Return the names that the computed half tensors of a float16 file have in the float32 file."""
    from onnx import TensorProto, shape_inference

    values = shape_inference.infer_shapes(model).graph.value_info
    halves = (value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT16)
    constants = {tensor.name for tensor in model.graph.initializer}
    return sorted({name.removesuffix("/float16") for name in halves if name not in constants})


def _with_ranges(model: "ModelProto", names: list[str]) -> "ModelProto":
    """Replace the outputs of a file by the largest absolute value of each named tensor, (names,)."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    for name, values in (("ranges/all", np.array([-1])), ("ranges/none", np.zeros(1, np.float32))):
        graph.initializer.append(numpy_helper.from_array(values, name))
    for number, name in enumerate(names):
        steps: list[tuple[str, list[str], dict[str, Any]]] = [
            ("Abs", [name], {}),
            ("Reshape", [f"ranges/{number}/Abs", "ranges/all"], {}),
            ("Concat", [f"ranges/{number}/Reshape", "ranges/none"], dict(axis=0)),  # a tensor may be empty
            ("ReduceMax", [f"ranges/{number}/Concat"], dict(keepdims=1)),
        ]
        graph.node.extend(helper.make_node(op, given, [f"ranges/{number}/{op}"], **kw) for op, given, kw in steps)
    maxima = [f"ranges/{number}/ReduceMax" for number in range(len(names))]
    graph.node.append(helper.make_node("Concat", maxima, ["ranges"], axis=0))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("ranges", TensorProto.FLOAT, [len(names)]))
    return model


def to_float16(model: "ModelProto") -> "ModelProto":
    """Convert the layers of a file, and the operators between them, to half precision.

    Inputs and outputs stay float32. A tensor is cast only between nodes of different precision: onnxruntime's converter
    would also round what one float32 node passes to the next.
    """
    from onnx import TensorProto, helper, numpy_helper, shape_inference

    model = shape_inference.infer_shapes(model)
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    values = (*graph.input, *graph.value_info, *graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT} | weights.keys()
    outputs = {value.name for value in graph.output}
    halves: set[str] = set()  # tensors that are float16 now
    nodes: list[NodeProto] = []
    casts: dict[tuple[str, int], str] = {}

    def cast(name: str, to: int) -> str:
        """Return the name of a tensor in the other precision. The cast is added where it is first needed."""
        if (name, to) not in casts:
            casts[name, to] = other = f"{name}/{TensorProto.DataType.Name(to).lower()}"
            if name in weights:
                weight = numpy_helper.to_array(weights[name]).astype(np.float16)
                graph.initializer.append(numpy_helper.from_array(weight, other))
            else:
                nodes.append(helper.make_node("Cast", [name], [other], f"{other}/Cast", to=to))
        return casts[name, to]

    for node in graph.node:
        is_half = outputs.isdisjoint(node.output) and _supports_half(node, weights)
        for place, name in enumerate(node.input):
            if node.op_type == "Shape" or (node.op_type == "Resize" and place > 0):
                continue  # takes either precision; takes sizes and scales in float32
            if is_half and name in floats and name not in halves:
                node.input[place] = cast(name, TensorProto.FLOAT16)
            elif not is_half and name in halves:
                node.input[place] = cast(name, TensorProto.FLOAT)
        if is_half:
            halves |= floats.intersection(node.output)
        nodes.append(node)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    for field, content in ((graph.node, nodes), (graph.initializer, kept), (graph.value_info, [])):
        del field[:]
        field.extend(content)
    return model


def _supports_half(node: "NodeProto", weights: Collection[str]) -> bool:
    """Return whether a node computes in float16 without overflow or rounded pixels."""
    if node.op_type in ("Cast", "ConstantOfShape"):  # an attribute sets the type of the output
        return False
    if ".attn/" in node.name:  # sums over all tokens may exceed 65504, float16's maximum; projections have no such sum
        return node.op_type == "MatMul" and any(name in weights for name in node.input)
    return not FLOAT32_NODES.search(node.name)
