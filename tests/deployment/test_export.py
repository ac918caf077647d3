"""Exported files agree with torch at any size, with operators of every runtime."""

import importlib
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.onnx_files import dimensions, load_standard, metadata
from helpers.paths import ROOT
from mmengine.config import Config

from xcit_mm.deployment import export_model
from xcit_mm.deployment.check import compare, evaluate_files
from xcit_mm.deployment.metadata import model_metadata
from xcit_mm.deployment.supported import check_segmentor
from xcit_mm.deployment.traceable import BinAverage
from xcit_mm.models.build import load_model

onnx = pytest.importorskip("onnx")
runtime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
BANDS_AND_ONE_CLASS = """
_base_ = "{base}"
model = dict(
    backbone=dict(in_channels=2),
    data_preprocessor=dict(mean=None, std=None),
    decode_head=dict(num_classes=1, threshold=0.5, loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=True)),
)
load = dict(type="LoadRasterFromFile", bands=(4, 1))
normalize = dict(type="Normalize", mean=[5.5, 6.5], std=[1, 2], to_rgb=False)
metainfo = dict(classes=("shape",), palette=[(230, 60, 50)])
test_dataloader = dict(dataset=dict(pipeline=[load, normalize], metainfo=metainfo))
"""
SEMANTIC_FPN = """
_base_ = "{root}/configs/demo/fpn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0), out_indices=(0, 1)),
    neck=dict(in_channels=[32] * 2, out_channels=16, num_outs=2),
    decode_head=dict(in_channels=[16] * 2, in_index=[0, 1], feature_strides=[4, 8], channels=16),
)
"""
DETECTOR = """
_base_ = "{root}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py"
arch = dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0)
model = dict(backbone=dict(arch=arch, out_indices=(0, 1), patch_size=8))
"""


@pytest.fixture(scope="module")
def small(write_trained):
    """A backbone of a detector, whose levels upsample and keep."""
    return write_trained(DETECTOR, part="backbone")


@pytest.mark.parametrize("output_size", [1, 2, 3, 6, (3, 7)])
@pytest.mark.parametrize("height, width", [(1, 5), (2, 7), (13, 32), (25, 6)])
def test_bin_average_equals_adaptive_pooling(output_size, height, width):
    x = torch.randn(2, 4, height, width, dtype=torch.double)
    torch.testing.assert_close(BinAverage(output_size)(x), F.adaptive_avg_pool2d(x, output_size))


def assert_agrees_with_torch_at_any_size(trained, path: Path) -> None:
    _, model = trained.load()
    session = runtime.InferenceSession(path)
    for batch, height, width in [(1, 64, 97), (3, 160, 72), (1, 33, 47)]:
        image = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            expected = model.inference(
                image, [dict(ori_shape=(height, width), img_shape=(height, width))] * batch
            )
        (logits,) = session.run(["logits"], {"image": image.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.forks
def test_segmentor_in_onnx_agrees_with_torch_at_any_size(segmentor, segmentor_file):
    assert_agrees_with_torch_at_any_size(segmentor, segmentor_file)
    assert list(segmentor_file.parent.iterdir()) == [segmentor_file]  # with its weights
    file = load_standard(segmentor_file)
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"])
    assert file.ir_version == 8  # for onnxruntime 1.15
    content = segmentor_file.read_bytes()
    assert str(ROOT).encode() not in content and b"site-packages" not in content
    facts = metadata(file)
    assert (facts["task"], facts["patch_size"]) == ("semantic segmentation", 16)
    assert (facts["arch"], facts["channel_order"]) == ("32x2x4", "RGB")
    assert facts["mean"] == [123.675, 116.28, 103.53] and len(facts["classes"]) == 5
    assert (facts["inputs"], facts["outputs"]) == (["image"], ["logits"])
    assert (
        facts["resize"] == dict(scale=[200, 120], keep_ratio=True) and facts["unsupported"] is None
    )


@pytest.mark.slow
def test_semantic_fpn_in_onnx_agrees_with_torch_at_any_size(write_trained, export):
    trained = write_trained(SEMANTIC_FPN)
    assert_agrees_with_torch_at_any_size(trained, export(trained))


def test_metadata_describe_other_bands_and_both_labels_of_one_class(write_trained, segmentor):
    cfg, model = write_trained(BANDS_AND_ONE_CLASS, base=segmentor.config).load()
    facts = {
        name: json.loads(value) for name, value in model_metadata(cfg, model, ["logits"]).items()
    }
    assert facts["channel_order"] == "as LoadRasterFromFile(bands=(4, 1)) gives them"
    assert facts["mean"] == [5.5, 6.5] and facts["std"] == [1, 2]
    assert facts["classes"] == ["background", "shape"] and facts["threshold"] == 0.5
    assert facts["unsupported"] == "LoadRasterFromFile in the test pipeline"


def test_backbone_of_a_detector_has_its_pyramid_as_outputs(small, call, tmp_path):
    out = tmp_path / "backbone.onnx"
    code, printed, progress = call("export", *small, "--out", out, "--part", "backbone")
    assert code == 0 and "stride8: within" in printed and "compare ..." in progress
    file = load_standard(out)
    facts = metadata(file)
    assert facts["task"] == "backbone" and facts["outputs"] == ["stride4", "stride8"]
    backbone = load_model(Config.fromfile(small.config), small.checkpoint, "backbone")
    session = runtime.InferenceSession(out)
    with torch.no_grad():
        for shape in [(1, 3, 64, 97), (3, 3, 160, 72)]:
            image = torch.randn(shape)
            for found, expected in zip(
                session.run(None, {"image": image.numpy()}), backbone(image), strict=True
            ):
                torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-3)

    weight = max(file.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 1.1, weight.name)
    )
    onnx.save(file, tmp_path / "other.onnx")
    backbone.outputs = facts["outputs"]
    with pytest.raises(RuntimeError, match=r"deviates by .* from torch"), torch.no_grad():
        compare(tmp_path / "other.onnx", backbone, channels=3)


def test_export_that_cannot_succeed_ends_in_one_line(small, segmentor, tmp_path, monkeypatch):
    detector, checkpoint = small
    configs = dict(
        resnet="_base_ = 'mmdet::_base_/models/faster-rcnn_r50_fpn.py'\ndefault_scope = 'mmdet'",
        untested=f"_base_ = '{detector}'\ntest_dataloader = test_evaluator = test_cfg = None\n",
        unscored=f"_base_ = '{segmentor.config}'\ntest_evaluator = None\n",
        nowhere=f"_base_ = '{segmentor.config}'\ntest_dataloader = dict(dataset=dict(data_root='no/such'))\n",
        unregistered=f"_base_ = '{segmentor.config}'\ntest_dataloader = dict(dataset=dict(type='MyData'))\n",
        unnamed=f"_base_ = '{segmentor.config}'\n"
        "test_dataloader = dict(dataset=dict(metainfo=dict(classes=('one', 'two', 'three'))))\n",
    )
    for name, text in configs.items():
        (tmp_path / f"{name}.py").write_text(text)
        configs[name] = str(tmp_path / f"{name}.py")
    state = torch.load(checkpoint)["state_dict"]
    classifier = str(tmp_path / "classifier.pth")
    torch.save(
        {key: value for key, value in state.items() if not key.startswith("fpn")}, classifier
    )
    (tmp_path / "broken.jpg").write_text("no image")
    out, backbone = tmp_path / "model.onnx", dict(part="backbone")
    out.write_text("a former file")
    before = sorted(tmp_path.iterdir())
    for config, file, path, options, error, message in [
        (detector, classifier, out, backbone, ValueError, "pyramid, which would be random"),
        (segmentor.config, checkpoint, out, {}, ValueError, "does not fit the model"),
        (configs["resnet"], checkpoint, out, {}, ValueError, "backbone is ResNet"),
        (
            configs["untested"],
            checkpoint,
            out,
            backbone,
            ValueError,
            "the config has no test_dataloader",
        ),
        (
            configs["unregistered"],
            checkpoint,
            out,
            {},
            ValueError,
            "no data set of type MyData is registered",
        ),
        (
            configs["unnamed"],
            segmentor.checkpoint,
            out,
            {},
            ValueError,
            r"^3 names \(one, \.\.\.\) for the 5 classes",
        ),
        (detector, "none.pth", out, backbone, FileNotFoundError, "no checkpoint at none.pth"),
        (detector, checkpoint, tmp_path / "model.pth", {}, ValueError, r"name it \.onnx"),
        (detector, checkpoint, tmp_path / "no" / "model.onnx", {}, FileNotFoundError, "no folder"),
        (detector, checkpoint, out, dict(part="head"), ValueError, "part='head': must be"),
        (
            detector,
            checkpoint,
            out,
            dict(evaluate=1, **backbone),
            ValueError,
            "a backbone has no score",
        ),
        (*segmentor, out, dict(evaluate=0), ValueError, "--evaluate 0: at least one image"),
        (
            configs["unscored"],
            segmentor.checkpoint,
            out,
            dict(evaluate=1),
            ValueError,
            "no test_evaluator",
        ),
        (
            configs["nowhere"],
            segmentor.checkpoint,
            out,
            dict(evaluate=1),
            FileNotFoundError,
            "no/such",
        ),
        (*segmentor, out, dict(int8=["none.jpg"]), FileNotFoundError, "none.jpg"),
        (*segmentor, out, dict(int8=[str(tmp_path / "broken.jpg")]), ValueError, "broken.jpg"),
    ]:
        with pytest.raises(error, match=message) as raised:
            export_model(config, file, path, **options)
        assert "\n" not in str(raised.value) and sorted(tmp_path.iterdir()) == before
        assert out.read_text() == "a former file"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime.*xcit_mm\[export\]"):
        export_model(detector, checkpoint, out)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(test_cfg=None), r"model\.test_cfg\.mode=None: must be one of whole, slide"),
        (
            dict(decode_head=[dict(type="FCNHead", num_classes=1)] * 2),
            "a cascade of one channel cannot be exported",
        ),
        (
            dict(decode_head=dict(type="Mask2FormerHead")),
            r"decode_head\.type='Mask2FormerHead' cannot be exported",
        ),
    ],
)
def test_segmentor_that_cannot_be_exported_is_named(options, message, segmentor):
    cfg = Config.fromfile(segmentor.config)
    for key, value in options.items():
        cfg.model[key] = value
    with pytest.raises(ValueError, match=message) as raised:
        check_segmentor(cfg)
    assert "\n" not in str(raised.value)


def test_scores_are_those_of_the_tested_images(segmentor, segmentor_file, tmp_path):
    """Sliding windows run through mmseg's own code."""
    cfg, model = segmentor.load()
    for test_cfg in (dict(mode="whole"), dict(mode="slide", crop_size=(64, 96), stride=(40, 64))):
        model.test_cfg = Config(test_cfg)
        lines = evaluate_files(cfg, model, {"float32": segmentor_file}, 2)
        (line,) = (line for line in lines if line.startswith("mIoU: torch "))
        scores = [float(part.split()[-1]) for part in line.partition(": ")[2].split(", ")]
        assert scores[1] == pytest.approx(scores[0], abs=0.2) and scores[0] > 0
