"""Conversion of exported files to half precision, for GPUs, if no value overflows."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .formats import read_onnx
from .images import sample_inputs
from .precision import PrecisionReport

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MAX_VALUE = 65504  # of float16
MAX_DETECTION_DRIFT = 0.1  # boxes that overlap nearly as much as NMS allows may change places
# Nodes outside of modules decode and select boxes and resize logits, and the positional encoding computes with pixels:
# from 1024 on, float16 has whole pixels only.
FLOAT32_NODES = re.compile(r"^[^.]*/|\.pos_embeder/")


def write_float16(cfg: Config, model: Any, path: Path, out: Path) -> PrecisionReport:
    """Write the float32 file `path` in half precision to `out`.

    Raises:
        RuntimeError: If a value exceeds float16's maximum.
    """
    import onnx

    converted = to_float16(onnx.load(path))
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, out)
    peak = _largest_value(path, _half_tensors(converted), sample_inputs(cfg, model)[1])
    details, notes = dict(peak=peak, run_on="CPU"), [f"values up to {peak:.0f} in half precision"]
    return PrecisionReport("fp16", details, notes, max_drift=MAX_DETECTION_DRIFT)


def _half_tensors(model: "ModelProto") -> list[str]:
    """Return the names that the computed half tensors of a float16 file have in the float32 file."""
    from onnx import TensorProto, shape_inference

    values = shape_inference.infer_shapes(model).graph.value_info
    halves = (value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT16)
    constants = {tensor.name for tensor in model.graph.initializer}
    return sorted({name.removesuffix("/float16") for name in halves if name not in constants})


def _largest_value(path: Path, names: list[str], images: list[Tensor]) -> float:
    """Return the largest absolute value of tensors of a float32 file.

    onnxruntime's CPU provider stores few halves, so that a value which overflows on a GPU does not overflow there.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(path)
    del model.graph.output[:]
    for name in names:
        peak = f"{name}/peak"
        model.graph.node.append(helper.make_node("Abs", [name], [f"{peak}/Abs"]))
        model.graph.node.append(helper.make_node("ReduceMax", [f"{peak}/Abs"], [peak], keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info(peak, TensorProto.FLOAT, []))
    run = read_onnx(model.SerializeToString())
    peaks = torch.stack([torch.stack(run(image)) for image in images]).amax(0)
    value, number = peaks.max(0)
    if value > MAX_VALUE:
        raise RuntimeError(
            f"{names[int(number)]} reaches {float(value):.3g}, above float16's maximum of {MAX_VALUE}: leave --fp16 out"
        )
    return float(value)


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
