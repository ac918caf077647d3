"""Checks, metadata and shapes of ONNX files."""

import json
from pathlib import Path
from typing import Any


def load_standard(path: Path) -> Any:
    """Load a file, which must be valid and consist of standard operators without control flow."""
    import onnx

    file = onnx.load(path)
    onnx.checker.check_model(file, full_check=True)
    assert [(opset.domain, opset.version) for opset in file.opset_import] == [("", 18)]
    assert not file.functions
    assert not {node.op_type for node in file.graph.node} & {"If", "Loop", "Scan", "Einsum"}
    return file


def metadata(file: Any) -> dict[str, Any]:
    """Return the metadata of a file of this package."""
    return {prop.key: json.loads(prop.value) for prop in file.metadata_props}


def dimensions(tensors: Any) -> dict[str, list[int | str]]:
    """Return the shapes of a graph's inputs or outputs; a variable size has a name."""
    shapes = {tensor.name: tensor.type.tensor_type.shape for tensor in tensors}
    return {
        name: [dim.dim_param or dim.dim_value for dim in shape.dim]
        for name, shape in shapes.items()
    }
