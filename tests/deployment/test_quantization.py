"""int8 files run, keep in float32 what decides, and tell what they lose."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from xcit_mm.deployment.export import export_model
from xcit_mm.deployment.formats import count_operators
from xcit_mm.deployment.preprocessing import put_preprocessing
from xcit_mm.deployment.quantization import Quantized, calibration_paths, write_int8
from xcit_mm.deployment.run import Model, read_picture
from xcit_mm.models.build import model_from_config
from xcit_mm.utils.configs import read_config

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def quantised_layers(path: Path) -> tuple[list[str], list[str]]:
    """Names of the convolutions and products with constant weights of a file: those in int8, and the others."""
    graph = onnx.load(path).graph
    constants = {one.name for one in graph.initializer}
    made_by = {output: node for node in graph.node for output in node.output}
    int8, others = [], []
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            weight = made_by.get(node.input[1])
            if weight is not None and weight.op_type == "DequantizeLinear" and weight.input[0] in constants:
                int8.append(node.name)
            elif not constants.isdisjoint(node.input):
                others.append(node.name)
    return int8, others


def test_an_int8_segmentor_runs_and_tells_its_loss(segmentor, segmentor_file, shapes, tmp_path):
    out = tmp_path / "int8.onnx"
    images = str(shapes / "images" / "training")
    exported = export_model(*segmentor, out, takes_pictures=True, calibration=images)
    assert list(tmp_path.iterdir()) == [out]
    file = onnx.load(out)
    onnx.checker.check_model(file, full_check=True)
    assert [one.domain for one in file.opset_import] == [""]
    int8, others = quantised_layers(out)
    assert len(int8) == exported.quantized.layers[0] > 8
    assert [name for name in int8 if ".mlp." in name] and [name for name in int8 if ".fpn_convs." in name]
    for float32 in (".attn/", ".local_mp.", ".conv_seg/"):
        assert [name for name in others if float32 in name] and not [name for name in int8 if float32 in name]
    quantised = {made for node in file.graph.node if node.op_type == "DequantizeLinear" for made in node.output}
    for node in file.graph.node:
        if node.op_type in ("Softmax", "LayerNormalization", "Erf"):
            assert quantised.isdisjoint(node.input), node.name

    told = json.loads(Model(out)._session.get_modelmeta().custom_metadata_map["int8"])
    assert told == json.loads(exported.metadata["int8"])
    assert (told["calibration_images"], told["evaluation_images"]) == (8, 4)
    scores = told["scores"]["mIoU"]
    assert told["loss_in_points"]["mIoU"] == pytest.approx(scores["float32"] - scores["int8"])
    assert told["milliseconds"]["1 threads"]["int8"] > 0 and told["megabytes"]["int8"] < told["megabytes"]["float32"]

    picture = read_picture(next((shapes / "images" / "validation").iterdir()))
    found, expected = (Model(path)(picture).labels for path in (out, segmentor_file))
    assert (found == expected).mean() > 0.9


def test_an_int8_detector_keeps_its_threshold_and_last_layers(mask_rcnn, mask_rcnn_file, shapes, tmp_path):
    out, cfg = tmp_path / "int8.onnx", read_config(mask_rcnn.config, [])
    paths = calibration_paths(cfg, f"{shapes}/images/training/*")
    model = model_from_config(cfg, mask_rcnn.checkpoint)
    quantized = write_int8(cfg, model, mask_rcnn_file, out, paths, 2)
    put_preprocessing(out)
    int8, others = quantised_layers(out)
    for layer in ("shared_fcs.0", "mask_head.convs.0.conv", "rpn_conv", "fpn_convs.3.conv"):
        assert [name for name in int8 if f".{layer}/" in name]
    for layer in ("rpn_cls", "rpn_reg", "fc_cls", "fc_reg", "conv_logits"):
        assert [name for name in others if f".{layer}/" in name]
        assert not [name for name in int8 if f".{layer}/" in name]
    (threshold,) = (one for one in onnx.load(out).graph.initializer if one.name.endswith("score_threshold"))
    assert onnx.numpy_helper.to_array(threshold) == pytest.approx(0.05)
    assert count_operators(out)["DequantizeLinear"] > 2 * len(int8) - 1
    assert quantized.evaluated == 2 and {"coco/bbox_mAP", "coco/segm_mAP"} == quantized.losses.keys()
    found = Model(out)(read_picture(next((shapes / "images" / "validation").iterdir())))
    assert found.boxes.shape[1] == 4 and found.masks.shape[0] == len(found.scores)


def test_a_loss_beyond_the_bound_is_said_plainly():
    scores = {
        "coco/bbox_mAP": (0.41, 0.41, 0.38),
        "coco/bbox_mAP_50": (0.6, 0.6, 0.1),
        "coco/segm_mAP": (0.4, 0.4, 0.4),
    }
    quantized = Quantized((30, 40), 32, 100, scores, 100, {1: (200.0, 100.0)}, (800, 1344), (180.0, 50.0))
    assert quantized.losses == pytest.approx({"coco/bbox_mAP": 3, "coco/segm_mAP": 0})
    layers, boxes, masks, speed = quantized.lines()
    assert "-3.00 points on 100 images, a loss of more than 0.5" in boxes and masks.endswith("points on 100 images")
    assert "30 of 40 layers" in layers and "2.00 times as fast" in speed


@pytest.mark.parametrize(
    "given, message",
    [
        ("no/such", "no images or videos at no/such"),
        ("broken", r"broken/b.jpg cannot be read"),
        ("film.mp4", "it is a video, give images"),
        ("model.pt2", "only .onnx files are quantised"),
    ],
)
def test_bad_calibration_images_are_one_line_before_the_work(given, message, segmentor, shapes, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    good = next((shapes / "images" / "training").iterdir())
    (folder / "a.jpg").write_bytes(good.read_bytes())
    (folder / "b.jpg").write_bytes(good.read_bytes()[:100])
    (tmp_path / "film.mp4").write_bytes(b"")
    out = tmp_path / ("model.pt2" if given == "model.pt2" else "model.onnx")
    images = given if given == "no/such" else str(tmp_path / given)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        export_model(*segmentor, out, calibration=str(folder) if given == "model.pt2" else images)
    assert "\n" not in str(raised.value) and sorted(tmp_path.rglob("*")) == before


def test_the_tool_refuses_a_backbone_in_int8(segmentor, shapes, tmp_path):
    tool = [
        sys.executable,
        ROOT / "tools" / "export.py",
        *segmentor,
        "--out",
        tmp_path / "b.onnx",
        "--part",
        "backbone",
    ]
    run = subprocess.run([*map(str, tool), "--int8", str(shapes)], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1 and run.stderr.startswith("ValueError: a backbone has no score")
    assert run.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
