"""Exported files agree with torch at any size, with operators of every runtime."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.onnx_files import dimensions, load_standard, metadata
from helpers.paths import ROOT
from mmengine.config import Config

from xcit_mm.deployment import export_model
from xcit_mm.deployment.check import compare
from xcit_mm.deployment.metadata import model_metadata
from xcit_mm.deployment.supported import check_segmentor
from xcit_mm.deployment.traceable import BinAverage
from xcit_mm.models.build import load_model

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
BANDS_AND_ONE_CLASS = """
_base_ = "{base}"
model = dict(
    backbone=dict(in_channels=2),
    data_preprocessor=dict(mean=None, std=None),
    decode_head=dict(
        num_classes=1,
        threshold=0.5,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=True),
    ),
)
load = dict(type="LoadRasterFromFile", bands=(4, 1))
normalize = dict(type="Normalize", mean=[5.5, 6.5], std=[1, 2], to_rgb=False)
metainfo = dict(classes=("shape",), palette=[(230, 60, 50)])
test_dataloader = dict(dataset=dict(pipeline=[load, normalize], metainfo=metainfo))
"""
SEMANTIC_FPN = """
_base_ = "{root}/configs/demo/fpn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0), out_indices=(0, 1)
    ),
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


SHAPES = [(1, 64, 97), (3, 160, 72), (1, 33, 47)]


def assert_agrees_with_torch(trained: Any, path: Path, shape: tuple[int, int, int]) -> None:
    _, model = trained.load()
    session = runtime.InferenceSession(path)
    batch, *size = shape
    image = torch.randn(batch, 3, *size)
    metas = [dict(ori_shape=size, img_shape=size)] * batch
    with torch.no_grad():
        expected = model.inference(image, metas)
    (logits,) = session.run(["logits"], {"image": image.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.forks
@pytest.mark.parametrize("shape", SHAPES)
def test_segmentor_in_onnx_agrees_with_torch_at_any_size(shape, segmentor, segmentor_file):
    assert_agrees_with_torch(segmentor, segmentor_file, shape)


def test_segmentor_is_one_portable_file_that_describes_itself(segmentor_file):
    assert list(segmentor_file.parent.iterdir()) == [segmentor_file]  # with its weights
    file = load_standard(segmentor_file)
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"])
    assert file.ir_version == 8  # for onnxruntime 1.15
    content = segmentor_file.read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content
    facts = metadata(file)
    expected = dict(
        task="semantic segmentation",
        patch_size=16,
        arch="32x2x4",
        channel_order="RGB",
        mean=[123.675, 116.28, 103.53],
        inputs=["image"],
        outputs=["logits"],
        resize=dict(scale=[200, 120], keep_ratio=True),
        unsupported=None,
    )
    assert {name: facts[name] for name in expected} == expected
    assert len(facts["classes"]) == 5


@pytest.fixture(scope="module")
def semantic_fpn(write_trained) -> Any:
    return write_trained(SEMANTIC_FPN)


@pytest.fixture(scope="module")
def semantic_fpn_file(semantic_fpn, export) -> Path:
    return export(semantic_fpn)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_semantic_fpn_in_onnx_agrees_with_torch_at_any_size(shape, semantic_fpn, semantic_fpn_file):
    assert_agrees_with_torch(semantic_fpn, semantic_fpn_file, shape)


def test_metadata_describe_other_bands_and_both_labels_of_one_class(write_trained, segmentor):
    cfg, model = write_trained(BANDS_AND_ONE_CLASS, base=segmentor.config).load()
    facts = {
        name: json.loads(value) for name, value in model_metadata(cfg, model, ["logits"]).items()
    }
    assert facts["channel_order"] == "as LoadRasterFromFile(bands=(4, 1)) gives them"
    assert facts["mean"] == [5.5, 6.5] and facts["std"] == [1, 2]
    assert facts["classes"] == ["background", "shape"] and facts["threshold"] == 0.5
    assert facts["unsupported"] == "LoadRasterFromFile in the test pipeline"


@pytest.fixture(scope="module")
def backbone_file(small, export) -> Path:
    return export(small, part="backbone")


def load_backbone(trained: Any) -> Any:
    return load_model(Config.fromfile(trained.config), trained.checkpoint, "backbone")


@pytest.mark.parametrize("shape", [(1, 3, 64, 97), (3, 3, 160, 72)])
def test_backbone_of_a_detector_has_its_pyramid_as_outputs(shape, small, backbone_file):
    facts = metadata(load_standard(backbone_file))
    assert facts["task"] == "backbone"
    assert facts["outputs"] == ["stride4", "stride8"]
    image = torch.randn(shape)
    outputs = runtime.InferenceSession(backbone_file).run(None, {"image": image.numpy()})
    with torch.no_grad():
        pyramid = load_backbone(small)(image)
    for output, expected in zip(outputs, pyramid, strict=True):
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-3, atol=1e-3)


def test_command_reports_steps_and_deviations(small, call, tmp_path):
    out = tmp_path / "backbone.onnx"
    code, printed, progress = call("export", *small, "--out", out, "--part", "backbone")
    assert code == 0
    assert "stride8: within" in printed
    assert "compare ..." in progress


def test_file_that_deviates_from_torch_is_refused(small, backbone_file, tmp_path):
    file = onnx.load(backbone_file)
    weight = max(file.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    other = onnx.numpy_helper.to_array(weight) * 1.1
    weight.CopyFrom(onnx.numpy_helper.from_array(other, weight.name))
    onnx.save(file, tmp_path / "other.onnx")
    backbone = load_backbone(small)
    backbone.outputs = ["stride4", "stride8"]
    with pytest.raises(RuntimeError, match=r"deviates by .* from torch"), torch.no_grad():
        compare(tmp_path / "other.onnx", backbone, channels=3)


@pytest.fixture
def inputs(small, segmentor, tmp_path) -> dict[str, str]:
    """Configs and checkpoints by their names, and a folder with the file of an earlier export."""
    nowhere = "test_dataloader = dict(dataset=dict(data_root='no/such'))"
    unregistered = "test_dataloader = dict(dataset=dict(type='MyData'))"
    classes = "dict(classes=('one', 'two', 'three'))"
    unnamed = f"test_dataloader = dict(dataset=dict(metainfo={classes}))"
    detector = str(small.config)
    base = str(segmentor.config)
    configs = dict(
        resnet=("mmdet::_base_/models/faster-rcnn_r50_fpn.py", "default_scope = 'mmdet'"),
        untested=(detector, "test_dataloader = test_evaluator = test_cfg = None"),
        unscored=(base, "test_evaluator = None"),
        nowhere=(base, nowhere),
        unregistered=(base, unregistered),
        unnamed=(base, unnamed),
    )
    names = dict(
        detector=detector,
        detector_weights=str(small.checkpoint),
        segmentor=base,
        segmentor_weights=str(segmentor.checkpoint),
    )
    for name, (parent, setting) in configs.items():
        path = tmp_path / f"{name}.py"
        path.write_text(f"_base_ = {parent!r}\n{setting}\n")
        names[name] = str(path)
    state = torch.load(small.checkpoint)["state_dict"]
    classifier = {key: tensor for key, tensor in state.items() if not key.startswith("fpn")}
    names["classifier_weights"] = str(tmp_path / "classifier.pth")
    torch.save(classifier, names["classifier_weights"])
    (tmp_path / "broken.jpg").write_text("no image")
    (tmp_path / "model.onnx").write_text("an earlier file")
    return names


BACKBONE = dict(part="backbone")


@pytest.mark.parametrize(
    "config, checkpoint, options, error, message",
    [
        ("detector", "classifier_weights", BACKBONE, ValueError, "pyramid, which would be random"),
        ("segmentor", "detector_weights", {}, ValueError, "does not fit the model"),
        ("resnet", "detector_weights", {}, ValueError, "backbone is ResNet"),
        ("untested", "detector_weights", BACKBONE, ValueError, "config has no test_dataloader"),
        ("unregistered", "detector_weights", {}, ValueError, "type MyData is registered"),
        ("unnamed", "segmentor_weights", {}, ValueError, r"^3 names \(one, \.\.\.\) for the 5"),
        ("detector", "none.pth", BACKBONE, FileNotFoundError, "no checkpoint at none.pth"),
        ("detector", "detector_weights", dict(part="head"), ValueError, "part='head': must be"),
        ("detector", "detector_weights", dict(BACKBONE, evaluate=1), ValueError, "has no score"),
        ("segmentor", "segmentor_weights", dict(evaluate=0), ValueError, "at least one image"),
        ("unscored", "segmentor_weights", dict(evaluate=1), ValueError, "no test_evaluator"),
        ("nowhere", "segmentor_weights", dict(evaluate=1), FileNotFoundError, "no/such"),
        ("segmentor", "segmentor_weights", dict(int8=["a.jpg"]), FileNotFoundError, "a.jpg"),
        ("segmentor", "segmentor_weights", dict(int8=["broken.jpg"]), ValueError, "broken.jpg"),
    ],
)
def test_export_that_cannot_succeed_ends_in_one_line(
    config, checkpoint, options, error, message, inputs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "model.onnx"
    with pytest.raises(error, match=message) as raised:
        export_model(inputs[config], inputs.get(checkpoint, checkpoint), out, **options)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before
    assert out.read_text() == "an earlier file"


@pytest.mark.parametrize(
    "out, error, message",
    [
        ("model.pth", ValueError, r"name it \.onnx"),
        ("no/model.onnx", FileNotFoundError, "no folder no: make it first"),
    ],
)
def test_output_that_cannot_be_written_is_named(out, error, message, small):
    with pytest.raises(error, match=message):
        export_model(*small, Path(out))


@pytest.mark.parametrize("name", ["config", "checkpoint", "photo"])
def test_export_replaces_no_input(name, small, tmp_path):
    path = tmp_path / "input.onnx"
    path.write_text("an input")
    inputs = dict(config=small.config, checkpoint=small.checkpoint, photo="photo.jpg")
    inputs[name] = path
    with pytest.raises(
        ValueError, match=r"--out .*input\.onnx is the input .*: give another --out"
    ):
        export_model(inputs["config"], inputs["checkpoint"], path, int8=[str(inputs["photo"])])
    assert path.read_text() == "an input"


def test_missing_packages_are_named(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"^onnxruntime not.*xcit_mm\[export\]"):
        export_model(*small, tmp_path / "model.onnx")


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


@pytest.mark.parametrize(
    "test_cfg",
    [dict(mode="whole"), dict(mode="slide", crop_size=(64, 96), stride=(40, 64))],
    ids=["whole", "slide"],
)
def test_file_scores_as_torch(test_cfg, segmentor, segmentor_file):
    from xcit_mm.deployment.scoring import evaluate_files

    cfg, model = segmentor.load()
    model.test_cfg = Config(test_cfg)
    lines = evaluate_files(cfg, model, {"float32": segmentor_file}, 2)
    (line,) = (line for line in lines if line.startswith("mIoU: torch "))
    score, file_score = (float(part.split()[-1]) for part in line.split(","))
    assert file_score == pytest.approx(score, abs=0.2)
    assert score > 0
