"""The recipe of docs/recipes.md quantises an exported file, with sensitive layers in float32."""

import shutil
from pathlib import Path

import pytest
from helpers.onnx_files import load_standard
from helpers.pages import blocks
from helpers.paths import ROOT
from helpers.processes import run_script

from xcit_mm.deployment.run import Model, read_image

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

IN_FLOAT32 = ("blocks.0", "local_mp.conv1", "rpn_cls", "rpn_reg", "fc_cls", "fc_reg", "conv_logits")


@pytest.mark.slow
def test_the_int8_recipe_keeps_sensitive_layers_and_its_file_runs(mask_rcnn_file, shapes, tmp_path):
    shutil.copy(ROOT / "xcit_mm" / "deployment" / "run.py", tmp_path)
    shutil.copy(mask_rcnn_file, tmp_path / "model.onnx")
    shutil.copytree(shapes / "images" / "training", tmp_path / "photos")
    page = ROOT / "docs" / "recipes.md"
    (script,) = (block for _, block in blocks(page) if "# quantize.py" in block)
    (tmp_path / "quantize.py").write_text(script)
    ended = run_script(Path("quantize.py"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr

    nodes = load_standard(tmp_path / "model-int8.onnx").graph.node
    dequantised = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    layers = [node for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
    int8 = [node.name for node in layers if node.input[1] in dequantised]
    assert len(int8) > 6
    assert not [name for name in int8 if any(f".{part}/" in name for part in IN_FLOAT32)]
    photo = next((shapes / "images" / "validation").iterdir())
    prediction = Model(tmp_path / "model-int8.onnx")(read_image(photo))
    assert prediction["boxes"].shape[1] == 4
    assert (tmp_path / "model-int8.onnx").stat().st_size < 0.7 * mask_rcnn_file.stat().st_size
