"""int8 files run, keep sensitive layers in float32, and report their loss."""

import json
from pathlib import Path

import pytest
from onnx_files import load_standard, metadata

from xcit_mm.deployment import ExportTarget, export_model
from xcit_mm.deployment.comparison import Drift
from xcit_mm.deployment.formats import count_operators
from xcit_mm.deployment.images import calibration_paths
from xcit_mm.deployment.preprocessing import add_preprocessing
from xcit_mm.deployment.quantization import Int8Report, losses_in_points, write_int8
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
    assert len(int8) == report.int8.layers > 8
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
    assert written["losses"]["mIoU"] == pytest.approx(scores["float32"] - scores["int8"])
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
    assert report.shared_images == 1 and report.drift.compared > 0
    add_preprocessing(out)
    int8, float32 = quantised_layers(out)
    for layer in ("shared_fcs.0", "mask_head.convs.0.conv", "rpn_conv", "fpn_convs.3.conv"):
        assert [name for name in int8 if f".{layer}/" in name]
    for layer in ("rpn_cls", "rpn_reg", "fc_cls", "fc_reg", "conv_logits"):
        assert [name for name in float32 if f".{layer}/" in name]
        assert not [name for name in int8 if f".{layer}/" in name]
    (threshold,) = (tensor for tensor in onnx.load(out).graph.initializer if tensor.name == "score_threshold")
    assert onnx.numpy_helper.to_array(threshold) == pytest.approx(0.05)
    assert count_operators(out)["DequantizeLinear"] > 2 * len(int8) - 1
    assert report.evaluated == 2 and {"coco/bbox_mAP", "coco/segm_mAP"} == report.losses.keys()
    results = Model(out)(read_image(next((shapes / "images" / "validation").iterdir())))
    assert results.boxes.shape[1] == 4 and results.masks.shape[0] == len(results.scores)


def test_large_loss_is_reported():
    scores = {
        "coco/bbox_mAP": dict(torch=0.41, float32=0.41, int8=0.38),
        "coco/bbox_mAP_50": dict(torch=0.6, float32=0.6, int8=0.1),
        "coco/segm_mAP": dict(torch=0.4, float32=0.4, int8=0.4),
    }
    losses = losses_in_points(scores)
    assert losses == pytest.approx({"coco/bbox_mAP": 3, "coco/segm_mAP": 0})
    times, sizes = {1: dict(float32=200.0, int8=100.0)}, dict(float32=180.0, int8=50.0)
    given = (100, scores, losses, times, (800, 1344), sizes)
    layers, drift, boxes, masks, speed = Int8Report(30, 40, 32, 0, Drift(100, 26, 9.0), "8 images", *given).lines()
    assert drift == "26 of 100 detections have no match, boxes move by 9.00 px (8 images)"
    assert "3 evaluated images were calibrated" in Int8Report(30, 40, 32, 3, Drift(), "8 images", *given).lines()[2]
    assert "-3.00 points on 100 images, a loss of more than 0.5" in boxes and masks.endswith("points on 100 images")
    assert "30 of 40 layers" in layers and "2.00 times as fast" in speed
    half = {"coco/bbox_mAP": dict(torch=0.41, float32=0.41, int8=0.405)}  # the difference of floats exceeds 0.005
    line = Int8Report(1, 1, 1, 0, Drift(), "no image", 1, half, losses_in_points(half), {}, (1, 1), sizes).lines()[2]
    assert line.endswith("-0.50 points on 1 images")


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
