"""int8 files run, keep sensitive layers in float32, and report their loss."""

import json
from pathlib import Path

import pytest
from onnx_files import load_standard, metadata

from xcit_mm.deployment import ExportTarget, export_model
from xcit_mm.deployment.comparison import Drift
from xcit_mm.deployment.formats import count_operators
from xcit_mm.deployment.images import calibration_paths
from xcit_mm.deployment.precision import PrecisionReport, compare_precision
from xcit_mm.deployment.preprocessing import add_preprocessing
from xcit_mm.deployment.quantization import write_int8
from xcit_mm.deployment.runtime import Model, read_image

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def quantised_layers(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of a file's convolutions and products with constant weights, in int8 and in float32."""
    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    int8, float32 = [], []
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            weight = producers.get(node.input[1])
            if weight is not None and weight.op_type == "DequantizeLinear" and weight.input[0] in constants:
                int8.append(node.name)
            elif not constants.isdisjoint(node.input):
                float32.append(node.name)
    return int8, float32


@pytest.mark.usefixtures("exported_before")
def test_int8_segmentor_runs_and_reports_its_loss(segmentor, segmentor_file, shapes, tmp_path):
    out = tmp_path / "int8.onnx"
    images = str(shapes / "images" / "training")
    report = export_model(*segmentor, ExportTarget(out, "model", "int8", True), calibration=images)
    assert list(tmp_path.iterdir()) == [out]
    file = load_standard(out)
    int8, float32 = quantised_layers(out)
    assert len(int8) == report.precision.details["layers"] > 8
    assert [name for name in int8 if ".mlp." in name] and [name for name in int8 if ".fpn_convs." in name]
    for layer in (".attn/", ".local_mp.", ".conv_seg/"):
        assert [name for name in float32 if layer in name] and not [name for name in int8 if layer in name]
    quantised = {output for node in file.graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    for node in file.graph.node:
        if node.op_type in ("Softmax", "LayerNormalization", "Erf"):
            assert quantised.isdisjoint(node.input), node.name

    written = json.loads(metadata(file)["int8"])
    assert written == json.loads(report.metadata["int8"])
    assert (written["calibration_images"], written["evaluated"]) == (8, 4)
    scores = written["scores"]["mIoU"]
    assert scores == report.precision.scores["mIoU"] and scores.keys() == {"torch", "float32", "int8"}
    assert written["milliseconds"]["1"]["int8"] > 0
    assert written["megabytes"]["int8"] < written["megabytes"]["float32"]

    image = read_image(next((shapes / "images" / "validation").iterdir()))
    found, expected = (Model(path)(image).labels for path in (out, segmentor_file))
    assert (found == expected).mean() > 0.9


def test_int8_detector_keeps_its_threshold_and_last_layers(mask_rcnn, mask_rcnn_file, shapes, tmp_path):
    out, (cfg, model) = tmp_path / "int8.onnx", mask_rcnn.load()
    paths = calibration_paths(cfg, f"{shapes}/images/training/*")
    shared = calibration_paths(cfg, f"{shapes}/images/validation/*")[:1]
    report = write_int8(cfg, model, mask_rcnn_file, out, paths + shared, 2)
    compare_precision(cfg, model, mask_rcnn_file, out, report, 2)
    assert report.details["shared_images"] == 1 and report.drift.compared > 0
    assert "1 evaluated images were calibrated" in "".join(report.notes)
    add_preprocessing(out)
    int8, float32 = quantised_layers(out)
    for layer in ("shared_fcs.0", "mask_head.convs.0.conv", "rpn_conv", "fpn_convs.3.conv"):
        assert [name for name in int8 if f".{layer}/" in name]
    for layer in ("rpn_cls", "rpn_reg", "fc_cls", "fc_reg", "conv_logits"):
        assert [name for name in float32 if f".{layer}/" in name]
        assert not [name for name in int8 if f".{layer}/" in name]
    (threshold,) = (tensor for tensor in onnx.load(out).graph.initializer if tensor.name == "score_thr")
    assert onnx.numpy_helper.to_array(threshold) == pytest.approx(0.05)
    assert count_operators(out)["DequantizeLinear"] > 2 * len(int8) - 1
    assert report.evaluated == 2 and {"coco/bbox_mAP", "coco/segm_mAP"} < report.scores.keys()
    results = Model(out)(read_image(next((shapes / "images" / "validation").iterdir())))
    assert results.boxes.shape[1] == 4 and results.masks.shape[0] == len(results.scores)


def test_large_loss_is_reported():
    scores = {
        "coco/bbox_mAP": dict(torch=0.41, float32=0.41, int8=0.38),
        "coco/bbox_mAP_50": dict(torch=0.6, float32=0.6, int8=0.1),
        "coco/segm_mAP": dict(torch=0.41, float32=0.41, int8=0.405),  # the difference of floats exceeds 0.005
    }
    notes, sizes = ["30 of 40 layers"], dict(float32=180.0, int8=50.0)
    report = PrecisionReport("int8", {}, notes, 0.5, None, "8 images", Drift(100, 26, 9.0), sizes, 100, scores)
    drift, layers, boxes, _, masks = report.lines()
    assert drift.endswith("CPU, 26 of 100 detections have no match, boxes move by 9.00 px (8 images)")
    assert boxes.endswith("-3.00 points, WARNING: more than 0.5 on 100 images") and layers == notes[0]
    assert masks.endswith("-0.50 points on 100 images")


@pytest.mark.parametrize(
    "given, message",
    [
        ("no/such", "no images or videos at no/such"),
        ("broken", r"broken/b.jpg cannot be read"),
        ("video.mp4", "it is a video, give images"),
    ],
)
def test_unreadable_calibration_images_end_in_one_line_before_the_export(given, message, segmentor, shapes, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    good = next((shapes / "images" / "training").iterdir())
    (folder / "a.jpg").write_bytes(good.read_bytes())
    (folder / "b.jpg").write_bytes(good.read_bytes()[:100])
    (tmp_path / "video.mp4").write_bytes(b"")
    images = given if given == "no/such" else str(tmp_path / given)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        export_model(*segmentor, ExportTarget(tmp_path / "model.onnx", precision="int8"), calibration=images)
    assert "\n" not in str(raised.value) and sorted(tmp_path.rglob("*")) == before
