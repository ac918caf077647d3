"""Float16 files compute layers in half precision, except where it would overflow or round pixels."""

import json

import numpy as np
import pytest
from onnx_files import load_standard, metadata

from xcit_mm.deployment import float16
from xcit_mm.deployment.precision import compare_precision
from xcit_mm.deployment.runtime import Model, read_image

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def kinds_of(model: "onnx.ModelProto") -> dict[str, int]:
    """Return the types of a file's tensors."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    return kinds | {tensor.name: tensor.data_type for tensor in graph.initializer}


def test_layers_are_float16_but_boxes_and_sums_over_tokens_are_not(mask_rcnn_file):
    before = onnx.load(mask_rcnn_file)
    model = float16.to_float16(onnx.load(mask_rcnn_file))
    onnx.checker.check_model(model, full_check=True)
    kinds = kinds_of(model)
    for value in [*before.graph.input, *before.graph.output]:
        assert kinds[value.name] == value.type.tensor_type.elem_type
    for node in model.graph.node:
        given = {kinds[name] for name in node.input if name} & {FLOAT, FLOAT16}
        if node.op_type in ("NonMaxSuppression", "TopK", "RoiAlign", "Softmax", "Sin", "Exp", "ReduceSum", "Sqrt"):
            assert given <= {FLOAT}, node.name
    graph = model.graph
    for scope in (".attn/MatMul", ".mlp.fc1/", ".norm1/", ".fpn_convs.0.conv/", ".shared_fcs.0/", ".conv_logits/"):
        found = [kinds[node.output[0]] for node in graph.node if scope in node.name]
        assert FLOAT16 in found, scope
        assert scope == ".attn/MatMul" or FLOAT not in found, scope
    weights = [tensor.dims for tensor in graph.initializer if tensor.data_type == FLOAT and len(tensor.dims) > 1]
    assert sum(map(np.prod, weights)) < 0.05 * sum(np.prod(tensor.dims) for tensor in before.graph.initializer)


def test_float16_detector_finds_the_same_objects(mask_rcnn, mask_rcnn_file, shapes, tmp_path):
    out = tmp_path / "fp16.onnx"
    trained = mask_rcnn.load()
    report = float16.write_float16(*trained, mask_rcnn_file, out)
    compare_precision(*trained, mask_rcnn_file, out, report, 0)
    assert report.images == "4 images of the test set" and report.scores == {}
    assert report.drift.share < 0.05 and report.drift.shift is not None
    image = read_image(next((shapes / "images" / "validation").iterdir()))
    expected, found = (Model(path)(image, score_thr=0.3).scores for path in (mask_rcnn_file, out))
    assert len(expected) > 5 and found[0] == pytest.approx(expected[0], abs=0.01)


@pytest.mark.usefixtures("exported_before")
def test_float16_segmentor_reports_its_score(segmentor, segmentor_file, shapes, call, tmp_path):
    out = tmp_path / "fp16.onnx"
    args = ("--out", out, "--fp16", "--evaluate", 2, "--with-preprocessing")
    code, printed, _ = call("export", *segmentor, *args)
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    assert "fp16            mIoU" in printed and "on the CPU, 0." in printed
    file = load_standard(out)
    assert file.graph.input[0].name == "pixels"
    report = json.loads(metadata(file)["fp16"])
    assert report["run_on"] == "CPU" and report["evaluated"] == 2 and report["drift"]["share"] < 0.02
    assert report["scores"]["mIoU"]["float16"] == pytest.approx(report["scores"]["mIoU"]["float32"], abs=2)
    assert report["megabytes"]["float16"] < 0.7 * report["megabytes"]["float32"]
    image = read_image(next((shapes / "images" / "validation").iterdir()))
    found, expected = (Model(path)(image).labels for path in (out, segmentor_file))
    assert (found == expected).mean() > 0.98


def test_layer_that_overflows_on_a_gpu_is_named(segmentor, segmentor_file, tmp_path):
    file = onnx.load(segmentor_file)
    (conv,) = (node for node in file.graph.node if node.name == "model.neck.fpn_convs.0.conv/Conv")
    name = conv.input[0]
    for number, factor in enumerate((1e4, 1e4, 1e-4, 1e-4)):  # the output of the layer is as before
        file.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), f"factor{number}"))
        scale = onnx.helper.make_node(
            "Mul", [name, f"factor{number}"], [f"scaled{number}"], f"model.neck.x/Mul{number}"
        )
        file.graph.node.insert([node.name for node in file.graph.node].index(conv.name), scale)
        name = f"scaled{number}"
    conv.input[0] = name
    onnx.save(file, tmp_path / "float32.onnx")
    with pytest.raises(RuntimeError, match=r"^scaled1 reaches [\d.e+]+, above float16's maximum of 65504"):
        float16.write_float16(*segmentor.load(), tmp_path / "float32.onnx", tmp_path / "fp16.onnx")


@pytest.mark.parametrize(
    "value, message", [(1e38, "values that are not finite"), (-1.0, "is found differently in float16")]
)
def test_file_ruined_by_float16_is_not_written(value, message, segmentor, segmentor_file, monkeypatch, tmp_path):
    def ruined(model: "onnx.ModelProto") -> "onnx.ModelProto":
        model = to_float16(model)
        for tensor in model.graph.initializer:
            if tensor.data_type == FLOAT16 and len(tensor.dims) == 4:
                weight = onnx.numpy_helper.to_array(tensor).astype(np.float32)
                with np.errstate(over="ignore"):
                    tensor.CopyFrom(onnx.numpy_helper.from_array((weight * value).astype(np.float16), tensor.name))
        return model

    to_float16 = float16.to_float16
    monkeypatch.setattr(float16, "to_float16", ruined)
    trained, out = segmentor.load(), tmp_path / "fp16.onnx"
    report = float16.write_float16(*trained, segmentor_file, out)
    with pytest.raises(RuntimeError, match=message):
        compare_precision(*trained, segmentor_file, out, report, 0)
