"""fp16 files compute their layers in half precision, and nothing that it would overflow or round by pixels."""

import json

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from xcit_mm.deployment import half
from xcit_mm.deployment.export import export_model
from xcit_mm.deployment.run import Model, read_picture
from xcit_mm.models.build import model_from_config

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def kinds_of(model: "onnx.ModelProto") -> dict[str, int]:
    """Types of the tensors of a file."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    return {one.name: one.type.tensor_type.elem_type for one in values} | {
        one.name: one.data_type for one in graph.initializer
    }


def test_layers_are_halves_and_boxes_and_sums_over_tokens_are_not(mask_rcnn_file):
    before = onnx.load(mask_rcnn_file)
    model = half.to_half(onnx.load(mask_rcnn_file))
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
    weights = [one for one in graph.initializer if one.data_type == FLOAT and len(one.dims) > 1]
    assert sum(np.prod(one.dims) for one in weights) < 0.05 * sum(np.prod(one.dims) for one in before.graph.initializer)


def test_a_detector_in_half_finds_the_same(mask_rcnn, mask_rcnn_file, shapes, tmp_path):
    cfg = Config.fromfile(mask_rcnn.config)
    init_default_scope(cfg.default_scope)
    out = tmp_path / "fp16.onnx"
    found = half.write_half(cfg, model_from_config(cfg, mask_rcnn.checkpoint).eval(), mask_rcnn_file, out, None)
    assert found.pictures == "4 images of the test set" and found.scores == {}
    assert found.share < 0.05 and found.shift is not None
    picture = read_picture(next((shapes / "images" / "validation").iterdir()))
    one, other = (Model(path)(picture, score_thr=0.3) for path in (mask_rcnn_file, out))
    assert len(one.scores) > 5 and one.scores[0] == pytest.approx(other.scores[0], abs=0.01)


def test_a_segmentor_in_half_tells_its_score(segmentor, segmentor_file, shapes, call, tmp_path):
    out = tmp_path / "fp16.onnx"
    args = ("--out", out, "--fp16", "--evaluate", 2, "--with-preprocessing")
    code, printed, _ = call("export", segmentor.config, segmentor.checkpoint, *args)
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    assert "fp16            mIoU" in printed and "on the CPU, 0." in printed
    file = onnx.load(out)
    onnx.checker.check_model(file, full_check=True)
    assert [one.domain for one in file.opset_import] == [""] and file.graph.input[0].name == "picture"
    told = json.loads(next(one.value for one in file.metadata_props if one.key == "fp16"))
    assert told["run_on"] == "CPU" and told["evaluated"] == 2 and told["share"] < 0.02
    assert told["scores"]["mIoU"]["fp16"] == pytest.approx(told["scores"]["mIoU"]["float32"], abs=2)
    assert told["megabytes"]["fp16"] < 0.7 * told["megabytes"]["float32"]
    picture = read_picture(next((shapes / "images" / "validation").iterdir()))
    found, expected = (Model(path)(picture).labels for path in (out, segmentor_file))
    assert (found == expected).mean() > 0.98


@pytest.mark.parametrize(
    "value, message", [(1e38, "numbers that are not finite"), (-1.0, "is found differently in fp16")]
)
def test_a_file_that_half_precision_ruins_is_not_written(
    value, message, segmentor, segmentor_file, monkeypatch, tmp_path
):
    def ruined(model: "onnx.ModelProto") -> "onnx.ModelProto":
        model = true(model)
        for one in model.graph.initializer:
            if one.data_type == FLOAT16 and len(one.dims) == 4:
                weight = onnx.numpy_helper.to_array(one).astype(np.float32)
                with np.errstate(over="ignore"):
                    one.CopyFrom(onnx.numpy_helper.from_array((weight * value).astype(np.float16), one.name))
        return model

    true = half.to_half
    monkeypatch.setattr(half, "to_half", ruined)
    cfg = Config.fromfile(segmentor.config)
    init_default_scope(cfg.default_scope)
    model = model_from_config(cfg, segmentor.checkpoint).eval()
    with pytest.raises(RuntimeError, match=message):
        half.write_half(cfg, model, segmentor_file, tmp_path / "fp16.onnx", None)


@pytest.mark.parametrize(
    "out, options, message",
    [
        ("model.pt2", {}, r"model\.pt2, the model: only whole models are written in fp16"),
        ("model.onnx", dict(part="backbone"), "the backbone: only whole models"),
        ("model.onnx", dict(calibration="images"), "--int8 and --fp16: give one of them"),
    ],
)
def test_what_is_not_written_in_half_is_one_line(out, options, message, segmentor, tmp_path):
    with pytest.raises(ValueError, match=message) as raised:
        export_model(*segmentor, tmp_path / out, half=True, **options)
    assert "\n" not in str(raised.value) and not list(tmp_path.iterdir())
