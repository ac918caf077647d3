"""int8 files run, keep sensitive layers in float32, and are scored beside float32."""

import re
from pathlib import Path

import pytest
from helpers.onnx_files import load_standard, metadata

from xcit_mm.deployment.run import Model, read_image

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


def quantised_layers(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of a file's convolutions and products with constant weights, in int8 and in
    float32.
    """
    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    int8, float32 = [], []
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            weight = producers.get(node.input[1])
            if (
                weight is not None
                and weight.op_type == "DequantizeLinear"
                and weight.input[0] in constants
            ):
                int8.append(node.name)
            elif not constants.isdisjoint(node.input):
                float32.append(node.name)
    return int8, float32


@pytest.mark.slow
def test_int8_detector_runs_and_is_scored(mask_rcnn, mask_rcnn_file, shapes, call, tmp_path):
    out, images = tmp_path / "int8.onnx", sorted((shapes / "images" / "training").iterdir())
    code, printed, progress = call(
        "export", *mask_rcnn, "--out", out, "--evaluate", 2, "--int8", *images
    )
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    assert (
        f"calibrate with {len(images)} images ..." in progress and "score 2 images ..." in progress
    )
    assert re.search(r"coco/segm_mAP: torch [\d.]+, float32 [\d.]+, int8 [\d.]+\n", printed)

    file = load_standard(out)
    int8, float32 = quantised_layers(out)
    assert f"int8: {len(int8)} of {len(int8) + len(float32)} layers" in printed
    for layer in (
        "shared_fcs.0",
        "mask_head.convs.0.conv",
        "rpn_conv",
        "fpn_convs.1.conv",
        "mlp.fc1",
    ):
        assert [name for name in int8 if f".{layer}/" in name]
    for layer in (
        "attn",
        "local_mp.conv1",
        "rpn_cls",
        "rpn_reg",
        "fc_cls",
        "fc_reg",
        "conv_logits",
    ):
        assert [name for name in float32 if f".{layer}/" in name]
        assert not [name for name in int8 if f".{layer}/" in name]
    assert metadata(file) == metadata(onnx.load(mask_rcnn_file))
    (threshold,) = (tensor for tensor in file.graph.initializer if tensor.name == "score_thr")
    assert onnx.numpy_helper.to_array(threshold) == pytest.approx(0.25)
    found = Model(out)(read_image(images[0]))
    assert found["boxes"].shape[1] == 4 and found["scores"].min(initial=1) > 0.25
    assert out.stat().st_size < 0.7 * mask_rcnn_file.stat().st_size
