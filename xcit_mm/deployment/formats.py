"""Writing and reading of ONNX files."""

import fcntl
import shutil
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from .operators import to_onnx
from .runtime.results import OUTPUTS, option_inputs

IR_VERSION = 8  # the version of opset 18, which onnxruntime reads from 1.14 on


def write_onnx(
    program: ExportedProgram, path: Path, names: list[str], metadata: dict[str, str], options: dict[str, Tensor]
) -> None:
    """Write a program with its weights to one file. Inputs after the image are optional, with `options` as defaults."""
    from onnxscript.ir import tensor

    is_fixed, sizes = "size" in metadata, {0: "batch", 2: "height", 3: "width"}
    onnx: Any = torch.onnx.export(
        program,
        input_names=["image", *options],
        output_names=names,
        dynamic_shapes=None if is_fixed else (sizes, *[None] * len(options)),
        custom_translation_table=to_onnx(),
        opset_version=18,  # torch writes it without a conversion
        dynamo=True,
        verbose=False,
    )
    graph = onnx.model.graph
    given: Counter[str] = Counter()
    for node in graph:
        # The module and the operator, `model.neck.fpn_convs.0.conv/Conv`, with a number if repeated.
        scopes = literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "['']"))
        name = f"{scopes[-2] if len(scopes) > 1 else ''}/{node.op_type}"
        given[name] += 1
        node.name = f"{name}_{given[name]}" if given[name] > 1 else name
        node.metadata_props.clear()  # stack traces, with local paths
    for output in graph.outputs:
        if output.name in OUTPUTS and not is_fixed:
            output.shape[0] = "detections"  # the exporter's name is a number
    # An input while torch optimizes the graph: it merges initializers of equal values.
    for value, default in zip(graph.inputs[1:], options.values(), strict=True):
        value.const_value = tensor(default.numpy(), name=value.name)
        graph.register_initializer(value)
    onnx.model.ir_version = IR_VERSION
    onnx.model.metadata_props.update(metadata)
    onnx.save(path, external_data=False)


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder for unfinished files, which is removed at the end; remove those that killed exports have left."""
    for lock in parent.glob(".export-*/lock"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its export is running
            shutil.rmtree(lock.parent, ignore_errors=True)
    with TemporaryDirectory(dir=parent, prefix=".export-") as name, open(Path(name) / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Path(name)


def count_operators(path: Path) -> Counter[str]:
    """Count the operators of an ONNX file."""
    import onnx

    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def add_metadata(path: Path, key: str, value: str) -> None:
    """Add an entry to the metadata of an ONNX file."""
    import onnx

    model = onnx.load(path)
    model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def read_onnx(path: Path | bytes, threads: int = 0) -> Callable[..., list[Tensor]]:
    """Return an ONNX file or its content as a function of images (B, C, H, W) and optional inputs, numbers by name.

    onnxruntime computes on all cores if `threads` is 0.
    """
    from onnxruntime import InferenceSession, SessionOptions

    settings = SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3  # else it warns of optional inputs
    session = InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    def run(image: Tensor, **options: float) -> list[Tensor]:
        inputs = {"image": image.numpy()} | option_inputs(options)
        return [torch.from_numpy(output) for output in session.run(None, inputs)]

    return run
