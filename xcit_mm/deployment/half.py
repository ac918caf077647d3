"""fp16: the layers of an exported file in half precision, for GPUs, with how far that moves what the file finds."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .agreement import CHECKED, made_picture
from .evaluation import evaluate_files
from .formats import read_onnx
from .pictures import Tally, tested_paths
from .quantization import prepared_images
from .run import Detections

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Halved", "to_half", "write_half"]

LOST = 0.1  # of the detections; those that overlap nearly as much as NMS allows may change places
# Nodes that stay in float32. Those of no module decode boxes and choose among them, and resize logits: from 1024 on, a
# half knows whole pixels only.
FLOAT = re.compile(r"^[^.]*/|\.pos_embeder/")


class Halved(NamedTuple):
    """How far what a file in half precision finds is from what it finds in float32, both on the CPU.

    Attributes:
        pictures: Which were compared.
        compared: How many pixels, or detections of a score from 0.3, those of both files.
        share: Of the pixels, those of another class; of the detections, those without a counterpart of their class
            that they overlap by half (IoU).
        shift: Largest distance of a side of a box from its counterpart's, in pixels of the image; None of a segmentor.
        megabytes: Of the float32 and the fp16 file.
        evaluated: Images of the test set.
        scores: If evaluated, of each metric those of torch, the float32 file and the fp16 file.
    """

    pictures: str
    compared: int
    share: float
    shift: float | None
    megabytes: tuple[float, float]
    evaluated: int
    scores: dict[str, tuple[float, ...]]

    def to_json(self) -> str:
        """For the file's metadata."""
        found = self._asdict() | dict(megabytes=dict(zip(("float32", "fp16"), self.megabytes, strict=True)))
        found["scores"] = {name: dict(float32=one[1], fp16=one[2]) for name, one in self.scores.items()}
        return json.dumps(found | dict(run_on="CPU"))


def write_half(cfg: Config, model: Any, path: Path, out: Path, count: int | None) -> Halved:
    """Write an exported file in half precision, compare both, and say so in the metadata of the new one.

    Args:
        cfg: A config of mmdet or mmseg.
        model: Its model, in eval mode.
        path: The float32 file.
        out: The fp16 file.
        count: Images of the test set to score the files on; None: none.

    Raises:
        RuntimeError: If the fp16 file gives numbers that are not finite, finds more than a fiftieth of the pixels or
            loses more than a tenth of the detections otherwise.
    """
    import onnx

    file = to_half(onnx.load(path))
    onnx.checker.check_model(file, full_check=True)
    onnx.save(file, out)
    runs = [read_onnx(one) for one in (path, out)]
    pictures, tally = _compared(cfg, model, runs)
    evaluated, scores = evaluate_files(cfg, model, runs, count) if count is not None else (0, {})
    megabytes = (path.stat().st_size / 1e6, out.stat().st_size / 1e6)
    halved = Halved(pictures, tally.compared, tally.share, tally.shift, megabytes, evaluated, scores)
    file.metadata_props.add(key="fp16", value=halved.to_json())
    onnx.save(file, out)
    return halved


def _compared(cfg: Config, model: Any, runs: list[Any]) -> tuple[str, Tally]:
    """On which pictures, and how much is found differently."""
    paths = tested_paths(cfg)
    images: Any
    if paths:
        name, images = f"{len(paths)} images of the test set", map(torch.from_numpy, prepared_images(cfg, model, paths))
    else:
        generator = torch.Generator().manual_seed(0)
        channels = cfg.model.backbone.get("in_channels", 3)
        name, images = "generated pictures", (made_picture(channels, *size, generator) for size, _ in CHECKED)
    tally = Tally()
    for image in images:
        before, after = (run(image) for run in runs)
        if not all(bool(output.isfinite().all()) for output in after):
            raise RuntimeError("the fp16 file gives numbers that are not finite: leave --fp16 out")
        if len(before) == 1:
            tally.add_pixels((_classes(model, after[0]) != _classes(model, before[0])).numpy())
        else:
            tally.add_detections(_detections(after), _detections(before))
    if tally.exceeds(LOST):
        raise RuntimeError(f"{tally.share:.1%} is found differently in fp16: leave --fp16 out")
    return name, tally


def _classes(model: Any, logits: Tensor) -> Tensor:
    return logits.argmax(1) if logits.shape[1] > 1 else logits.sigmoid() > model.decode_head.threshold


def _detections(outputs: list[Tensor]) -> Detections:
    boxes, scores, labels = (one.numpy() for one in outputs[:3])
    return Detections(boxes, scores, labels, None)


def to_half(model: "ModelProto") -> "ModelProto":
    """A file with its layers, and what lies between them, in half precision; inputs and outputs stay float32.

    onnxruntime's own converter would round what one node in float32 hands to the next too.
    """
    from onnx import TensorProto, helper, numpy_helper, shape_inference

    model = shape_inference.infer_shapes(model)
    graph = model.graph
    values = [*graph.input, *graph.value_info, *graph.output]
    constants = {one.name: one for one in graph.initializer if one.data_type == TensorProto.FLOAT}
    floats = {one.name for one in values if one.type.tensor_type.elem_type == TensorProto.FLOAT} | constants.keys()
    outputs = {one.name for one in graph.output}
    halves: set[str] = set()
    nodes: list[NodeProto] = []
    made: set[str] = set()

    def cast(name: str, kind: int) -> str:
        """The name of a tensor in the other precision, which is made where it is first needed."""
        other = f"{name}/{TensorProto.DataType.Name(kind).lower()}"
        if other not in made and name in constants:
            values = numpy_helper.to_array(constants[name]).astype(np.float16)
            graph.initializer.append(numpy_helper.from_array(values, other))
        elif other not in made:
            nodes.append(helper.make_node("Cast", [name], [other], f"{other}/Cast", to=kind))
        made.add(other)
        return other

    for node in graph.node:
        half = _in_half(node, constants) and outputs.isdisjoint(node.output)
        for place, name in enumerate(node.input):
            if node.op_type == "Shape" or (node.op_type == "Resize" and place > 0):
                continue  # of either precision; scales are float32
            if half and name in floats and name not in halves:
                node.input[place] = cast(name, TensorProto.FLOAT16)
            elif not half and name in halves:
                node.input[place] = cast(name, TensorProto.FLOAT)
        if half:
            halves |= floats.intersection(node.output)
        nodes.append(node)
    used = {name for node in nodes for name in node.input}
    kept = [one for one in graph.initializer if one.name in used]
    for field, content in ((graph.node, nodes), (graph.initializer, kept), (graph.value_info, [])):
        del field[:]
        field.extend(content)
    return model


def _in_half(node: "NodeProto", constants: dict[str, Any]) -> bool:
    if node.op_type in ("Cast", "ConstantOfShape"):  # whose own attribute says what they give
        return False
    if ".attn/" in node.name:  # it sums over all tokens, which may pass half's largest, 65504; but for its projections
        return node.op_type == "MatMul" and not constants.keys().isdisjoint(node.input)
    return not FLOAT.search(node.name)
