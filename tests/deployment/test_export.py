"""Exported files agree with torch at any size, with operators of every runtime."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from helpers import small_models
from helpers.onnx_files import dimensions, load_standard, metadata
from helpers.paths import ROOT
from mmengine.config import Config

from xcit_mm import deployment
from xcit_mm import export as export_model
from xcit_mm.deployment.check import compare
from xcit_mm.deployment.metadata import describe_model

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("fixture", ["segmentor_file", "mask_rcnn_file"])
def test_a_model_is_one_portable_file_of_any_size_without_local_paths(fixture, request):
    path = request.getfixturevalue(fixture)
    assert list(path.parent.iterdir()) == [path]  # with its weights
    file = load_standard(path)
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"])
    assert [output.name for output in file.graph.output] == metadata(file)["outputs"]
    assert file.ir_version == 8  # for onnxruntime 1.14
    content = path.read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content


def test_metadata_describe_other_bands_and_both_labels_of_one_class(segmentor):
    cfg = Config.fromfile(segmentor.config)
    cfg.model.backbone.in_channels = 2
    cfg.model.data_preprocessor.update(mean=None, std=None)
    loss = dict(type="CrossEntropyLoss", use_sigmoid=True)
    cfg.model.decode_head.update(num_classes=1, threshold=0.5, loss_decode=loss)
    dataset = cfg.test_dataloader.dataset
    dataset.metainfo = dict(classes=("shape",))
    normalize = dict(type="Normalize", mean=[5.5, 6.5], std=[1, 2], to_rgb=False)
    dataset.pipeline = [dict(type="LoadRasterFromFile", bands=(4, 1)), normalize]
    facts = describe_model(cfg, small_models.build(cfg), ["logits"])
    assert (facts["channel_order"], facts["bands"]) == (None, (4, 1))
    assert (facts["mean"], facts["std"]) == ([5.5, 6.5], [1, 2])
    assert (facts["classes"], facts["threshold"]) == (["background", "shape"], 0.5)
    assert facts["unsupported"] == "LoadRasterFromFile"


def test_metadata_say_that_only_a_detector_that_pads_takes_small_images(mask_rcnn):
    cfg, model = mask_rcnn.load()
    assert describe_model(cfg, model, [])["min_side"] == 1
    model.data_preprocessor.pad_size_divisor = 1
    assert describe_model(cfg, model, [])["min_side"] == 32


def test_file_that_deviates_from_the_library_s_prediction_is_refused(
    segmentor, segmentor_file, tmp_path
):
    file = onnx.load(segmentor_file)
    weight = max(file.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    other = onnx.numpy_helper.to_array(weight) * 1.1
    weight.CopyFrom(onnx.numpy_helper.from_array(other, weight.name))
    onnx.save(file, tmp_path / "other.onnx")
    with pytest.raises(RuntimeError, match="deviates"), torch.no_grad():
        compare(tmp_path / "other.onnx", segmentor.load()[1])


def test_detector_with_an_option_that_the_file_lacks_is_refused(mask_rcnn, mask_rcnn_file):
    """Class-agnostic suppression, which the traced module does not know."""
    model = mask_rcnn.load()[1]
    model.roi_head.test_cfg.nms.class_agnostic = True
    with pytest.raises(RuntimeError, match="have no match"), torch.no_grad():
        compare(mask_rcnn_file, model)


def test_what_run_py_cannot_do_and_what_misplaces_maps_is_named_before_the_trace(
    segmentor, tmp_path, capsys
):
    cfg = Config.fromfile(segmentor.config)
    cfg.test_dataloader.dataset.pipeline[0].color_type = "grayscale"
    cfg.model.data_preprocessor.test_cfg = None
    cfg.dump(tmp_path / "own.py")
    out = tmp_path / "own.py" / "model.onnx"  # no folder
    with pytest.raises(FileExistsError):
        export_model(tmp_path / "own.py", out, checkpoint=segmentor.checkpoint)
    notes = capsys.readouterr().err
    assert "test_cfg=dict(size_divisor=32)" in notes
    assert "run.py has no LoadImageFromFile(color_type='grayscale')" in notes


@pytest.mark.peers
def test_plain_transformer_of_timm_is_exported(tmp_path, export, write_trained):
    pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
    cfg = small_models.semantic_fpn(
        neck=dict(in_channels=[64] * 4), decode_head=dict(num_classes=150)
    )
    cfg.model.backbone = dict(type="TimmPyramid", model="test_vit", norm_cfg=dict(type="BN"))
    file = load_standard(export(write_trained(cfg)))  # the export compares it with mmseg
    assert metadata(file)["outputs"] == ["logits"]


def test_a_missing_package_is_named_before_a_model_is_traced(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError, match="onnxscript: pip install"):
        importlib.reload(deployment)


UNNAMED = "test_dataloader = dict(dataset=dict(metainfo=dict(classes=('one', 'two', 'three'))))"
MASKS = "model = dict(decode_head=dict(type='Mask2FormerHead'))"


@pytest.mark.parametrize(
    "setting, options, error, named",
    [
        (MASKS, {}, ValueError, "Mask2FormerHead classifies masks"),
        ("", dict(checkpoint="none.pth"), FileNotFoundError, "none.pth"),
        (UNNAMED, {}, ValueError, r"names 3 classes \(one, \.\.\.\), and the model has 5"),
        ("", dict(out=Path("text.onnx")), FileExistsError, r"text\.onnx exists: remove"),
    ],
)
def test_export_that_cannot_succeed_ends_in_one_line(
    setting, options, error, named, segmentor, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("config.py").write_text(f"_base_ = {str(segmentor.config)!r}\n{setting}\n")
    Path("text.onnx").write_text("a user's own")
    before = sorted(Path().rglob("*.*"))
    defaults = dict(checkpoint=segmentor.checkpoint, out=Path("model.onnx"))
    with pytest.raises(error, match=named) as raised:
        export_model("config.py", **(defaults | options))
    assert "\n" not in str(raised.value)
    assert sorted(Path().rglob("*.*")) == before
    assert Path("text.onnx").read_text() == "a user's own"
