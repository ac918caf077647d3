"""int8 files run, keep sensitive layers in float32, and are scored beside float32."""

import re

import pytest
from helpers.onnx_files import load_standard, metadata

from xcit_mm.deployment.run import Model, read_image

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


IN_INT8 = ("shared_fcs.0", "mask_head.convs.0.conv", "rpn_conv", "fpn_convs.1.conv", "mlp.fc1")
IN_FLOAT32 = ("blocks.0", "local_mp.conv1", "rpn_cls", "rpn_reg", "fc_cls", "fc_reg", "conv_logits")


@pytest.mark.slow
def test_int8_detector_runs_and_is_scored(mask_rcnn, mask_rcnn_file, shapes, call, tmp_path):
    out = tmp_path / "int8.onnx"
    images = sorted((shapes / "images" / "training").iterdir())
    options = ("--evaluate", 2, "--int8", *images)
    code, printed, progress = call("export", *mask_rcnn, "--out", out, *options)
    assert code == 0
    assert list(tmp_path.iterdir()) == [out]
    assert f"calibrate with {len(images)} images ..." in progress
    assert "score 2 images ..." in progress
    assert re.search(r"coco/segm_mAP: torch [\d.]+, float32 [\d.]+, int8 [\d.]+\n", printed)

    file = load_standard(out)
    nodes = file.graph.node
    dequantised = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    layers = [node for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
    int8 = " ".join(node.name for node in layers if node.input[1] in dequantised)
    float32 = " ".join(node.name for node in layers if node.input[1] not in dequantised)
    assert [layer for layer in IN_INT8 if f".{layer}/" not in int8] == []
    assert [layer for layer in IN_FLOAT32 if f".{layer}/" not in float32] == []
    assert [layer for layer in IN_FLOAT32 if f".{layer}/" in int8] == []
    assert re.search(r"int8: \d+ of \d+ layers", printed)
    assert metadata(file) == metadata(onnx.load(mask_rcnn_file))
    prediction = Model(out)(read_image(images[0]))
    assert prediction["boxes"].shape[1] == 4
    assert prediction["scores"].min(initial=1) > 0.25
    assert out.stat().st_size < 0.7 * mask_rcnn_file.stat().st_size
