"""The float16 recipe where a runtime really computes in float16, unlike onnxruntime on a CPU."""

import numpy as np
import pytest
import torch
from torch.export import Dim

from xcit_mm.models import XCA

onnx = pytest.importorskip("onnx")
float16 = pytest.importorskip("onnxruntime.transformers.float16")
pytest.importorskip("onnxscript")
pytest.importorskip("xcit_mm.deployment")


def test_attention_of_large_images_does_not_overflow_float16():
    from onnx.reference import ReferenceEvaluator

    torch.manual_seed(0)
    attention = XCA(8, 2).eval()
    torch.nn.init.normal_(attention.qkv.bias)
    example = torch.zeros(2, 300, 8)
    sizes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    file = torch.onnx.export(
        attention, (example,), dynamic_shapes=(sizes,), opset_version=18, dynamo=True, verbose=False
    ).model_proto
    (name,) = (graph_input.name for graph_input in file.graph.input)
    half = float16.convert_float_to_float16(file)
    for tokens in (20_000, 70_000):  # float16 ends at 65,504
        x = (3 * torch.randn(1, tokens, 8) + torch.randn(8)).half()
        (actual,) = ReferenceEvaluator(half).run(None, {name: x.numpy()})
        with torch.no_grad():
            expected = attention(x.float()).numpy()
        assert actual.dtype == np.float16
        assert np.abs(actual - expected).mean() < 3e-3 * np.abs(expected).mean()
