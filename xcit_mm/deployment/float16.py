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

from .comparison import Drift
from .evaluation import Scores, evaluate_files, score_lines
from .formats import add_metadata, megabytes, read_onnx
from .images import model_inputs, sample_images
from .runtime import Detections, Segmentation

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Float16Report", "to_float16", "write_float16"]

MAX_DETECTION_DRIFT = 0.1  # boxes that overlap nearly as much as NMS allows may change places
# Nodes outside of modules decode and select boxes and resize logits, and the positional encoding computes with pixels:
# from 1024 on, float16 has whole pixels only.
FLOAT32_NODES = re.compile(r"^[^.]*/|\.pos_embeder/")


class Float16Report(NamedTuple):
    """Comparison of a float16 file with its float32 file, both on a CPU.

    Attributes:
        images: Description of the compared images.
        drift: Differences between the predictions.
        megabytes: Size of each file.
        evaluated: Number of images of the test set that were evaluated.
        scores: Scores of torch and both files.
    """

    images: str
    drift: Drift
    megabytes: dict[str, float]
    evaluated: int
    scores: Scores

    def lines(self) -> list[str]:
        """Summarize the comparison."""
        size = "{float32:.1f} to {float16:.1f} MB".format(**self.megabytes)
        return [f"{size}; on the CPU, {self.drift.line()} ({self.images})", *score_lines(self.scores)]

    def to_json(self) -> str:
        """Return the value of the file's metadata."""
        drift = dict(asdict(self.drift), share=self.drift.share)
        return json.dumps(self._asdict() | dict(drift=drift, run_on="CPU"))


def write_float16(cfg: Config, model: Any, path: Path, out: Path, count: int | None) -> Float16Report:
    """Write the float32 file `path` in half precision to `out`, and compare both.

    The report is added to the new file's metadata. Both are evaluated on `count` images of the test set, if given.

    Raises:
        RuntimeError: If the float16 file returns values that are not finite, or more than a fiftieth of the pixels or a
            tenth of the detections differ.
    """
    import onnx

    converted = to_float16(onnx.load(path))
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, out)
    runs = dict(float32=read_onnx(path), float16=read_onnx(out))
    images, drift = _compare(cfg, model, **runs)
    evaluated, scores = (0, {}) if count is None else evaluate_files(cfg, model, runs, count)
    report = Float16Report(images, drift, megabytes(float32=path, float16=out), evaluated, scores)
    add_metadata(out, "fp16", report.to_json())
    return report


def _compare(cfg: Config, model: Any, float32: Callable, float16: Callable) -> tuple[str, Drift]:
    """Compare two files on images of the test set, or else on synthetic images; describe these images."""
    description, samples = sample_images(cfg)
    are_paths = isinstance(samples[0], str)
    images: Any = map(torch.from_numpy, model_inputs(cfg, model, samples)) if are_paths else samples
    drift = Drift()
    for image in images:
        outputs = float16(image)
        if not all(bool(output.isfinite().all()) for output in outputs):
            raise RuntimeError("the float16 file returns values that are not finite: leave --fp16 out")
        drift.add(_prediction(model, outputs), _prediction(model, float32(image)))
    if drift.exceeds(MAX_DETECTION_DRIFT):
        raise RuntimeError(f"{drift.share:.1%} is found differently in float16: leave --fp16 out")
    return description, drift


def _prediction(model: Any, outputs: list[Tensor]) -> Detections | Segmentation:
    if len(outputs) > 1:
        boxes, scores, classes = (output.numpy() for output in outputs[:3])
        return Detections(boxes, scores, classes, None)
    (logits,) = outputs
    labels = logits.argmax(1) if logits.shape[1] > 1 else logits.sigmoid() > model.decode_head.threshold
    return Segmentation(labels[0].numpy())


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
