"""int8: static quantisation of an exported file by onnxruntime, calibrated with images."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import pseudo_collate

from ..prediction.listing import find_items
from ..prediction.preprocessing import Preprocessing

OPERATORS = ["Conv", "Gemm", "MatMul"]  # operators with an int8 kernel on CPUs
# Modules that stay in float32: attention, whose products of channels weigh all tokens, and which a
# prepared block computes itself; positions, which are computed once; the stem and depthwise
# convolutions, which take little time; and the last layers, whose outputs are logits and offsets of
# boxes.
FLOAT32_NODES = re.compile(
    r"\.(attn|pos_embeder|patch_embed|local_mp)\b|\bblocks\.\d+/"
    r"|\.(conv_seg|conv_logits|(rpn|fc|retina)_(cls|reg))/"
)


def load_images(cfg: Config, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Load at most 100 images, evenly spread over the sources, by a config's test pipeline."""
    prepare = Preprocessing(cfg)
    items = find_items(sources).items
    step = -(-len(items) // 100)
    return [prepare(prepare.read(item.path)) for item in items[::step]]


def quantize(path: Path, out: Path, preprocessor: Any, images: list[dict[str, Any]]) -> str:
    """Write a file in int8, with the ranges of activations in images, and return a report."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    batches = (preprocessor(pseudo_collate([image]), False) for image in images)

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, Any] | None:
            batch = next(batches, None)
            return batch and dict(image=batch["inputs"].numpy())

    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        if node.op_type in OPERATORS and constants & {*node.input}
    ]
    chosen = [name for name in layers if not FLOAT32_NODES.search(name)]
    quantize_static(
        path,
        out,
        Reader(),
        op_types_to_quantize=OPERATORS,
        nodes_to_quantize=chosen,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Products without a quantised output give float32, to which their bias is added.
        extra_options=dict(OpTypesToExcludeOutputQuantization=["Gemm", "MatMul"]),
    )
    quantized = onnx.load(out)
    for field in ("metadata_props", "opset_import"):  # which onnxruntime changes
        quantized.ClearField(field)
        getattr(quantized, field).extend(getattr(model, field))
    onnx.save(quantized, out)
    return f"int8: {len(chosen)} of {len(layers)} layers"
