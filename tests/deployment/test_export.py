"""Exported files agree with torch at any size, with operators of every runtime."""

import importlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden import fill
from mmengine.config import Config
from mmengine.registry import MODELS, Registry
from onnx_files import dimensions, load_standard, metadata
from paths import ROOT
from torch import nn

from xcit_mm import XCiT
from xcit_mm.deployment import ExportReport, ExportTarget, export, export_model
from xcit_mm.deployment.formats import working_folder
from xcit_mm.deployment.metadata import class_names
from xcit_mm.deployment.supported import check_segmentor
from xcit_mm.deployment.traceable import BinAverage, exportable
from xcit_mm.models.build import backbone_from_config
from xcit_mm.utils.compat import BatchNorm

BANDS_AND_ONE_CLASS = """
_base_ = "{base}"
model = dict(
    backbone=dict(in_channels=2, ignore_padding=True),  # images are padded to multiples of 32
    data_preprocessor=dict(mean=None, std=None),
    decode_head=dict(num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)),
)
load = dict(type="LoadRasterFromFile", bands=(4, 1))
normalize = dict(type="Normalize", mean=[5.5, 6.5], std=[1, 2], to_rgb=False)
metainfo = dict(classes=("shape",), palette=[(230, 60, 50)])
test_dataloader = dict(dataset=dict(pipeline=[load, normalize], metainfo=metainfo))
"""
UPERNET = """
_base_ = "{root}/configs/upernet/upernet_xcit-t12-p16_8xb2-160k_ade20k-512x512.py"
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=1, num_heads=4, eta=1.0), out_indices=(0,)),
    decode_head=dict(in_channels=[32], in_index=[0], channels=16),
    auxiliary_head=dict(in_channels=32, in_index=0, channels=16),
)
"""
# With a patch of 8, three levels upsample, keep and pool.
DETECTOR = """
_base_ = "{root}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth={depth}, num_heads=4, eta=1.0),
        out_indices={out_indices},
        patch_size=8,
    ),
)
"""


@pytest.fixture(scope="module")
def small(write_trained):
    """A backbone of one block, which is exported in seconds."""
    return write_trained(DETECTOR, part="backbone", depth=1, out_indices=(0,))


@pytest.mark.parametrize("output_size", [1, 2, 3, 6, (3, 7)])
@pytest.mark.parametrize("height, width", [(1, 5), (2, 7), (13, 32), (25, 6)])
def test_bin_average_equals_adaptive_pooling(output_size, height, width):
    x = torch.randn(2, 4, height, width, dtype=torch.double)
    torch.testing.assert_close(BinAverage(output_size)(x), F.adaptive_avg_pool2d(x, output_size))


@pytest.mark.parametrize("given, used", [("auto", "covariance"), ("plain", "plain"), ("gram", "gram")])
def test_traced_copy_folds_batch_norm_and_keeps_the_model(given, used):
    model = fill(XCiT(dict(embed_dim=32, depth=1, num_heads=4, eta=1.0), out_indices=(0,), attn_implementation=given))
    x = torch.randn(1, 3, 75, 101)
    with torch.no_grad():
        before = model(x)[0]
        copy = exportable(model)
        torch.testing.assert_close(copy(x)[0], before, rtol=1e-4, atol=1e-4)
        assert torch.equal(model(x)[0], before)
    assert (model.blocks[0].attn.implementation, copy.blocks[0].attn.implementation) == (given, used)
    assert [name for name, m in copy.named_modules() if isinstance(m, BatchNorm)] == ["blocks.0.local_mp.bn"]


def test_segmentor_in_onnx_agrees_with_torch_at_any_size(write_trained, tmp_path):
    runtime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    trained, out = write_trained(UPERNET), tmp_path / "model.onnx"
    report = export_model(*trained, ExportTarget(out))
    assert list(tmp_path.iterdir()) == [out]  # with its weights

    file = load_standard(out)
    assert {node.op_type for node in file.graph.node} == set(report.operators) and report.operators["MatMul"] > 10
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"])
    assert file.ir_version == 8  # for onnxruntime 1.15
    assert str(ROOT).encode() not in out.read_bytes() and b"site-packages" not in out.read_bytes()

    facts = metadata(file)
    assert facts == report.metadata
    assert (facts["task"], facts["patch_size"]) == ("semantic segmentation", "16")
    assert (facts["arch"], facts["channel_order"]) == ("32x1x4", "RGB")
    assert json.loads(facts["mean"]) == [123.675, 116.28, 103.53]
    assert len(json.loads(facts["classes"])) == 150

    _, model = trained.load()
    session = runtime.InferenceSession(out)
    for batch, height, width in [(1, 64, 97), (3, 160, 72), (1, 33, 47)]:  # torch.export's minimum is above the last
        image = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            expected = model.inference(image, [dict(ori_shape=(height, width), img_shape=(height, width))] * batch)
        (logits,) = session.run(["logits"], {"image": image.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-3, atol=1e-3)


def test_metadata_describe_other_bands_and_both_labels_of_one_class(write_trained, segmentor, tmp_path):
    pytest.importorskip("onnxruntime")
    runtime = importlib.import_module("xcit_mm.deployment.runtime")
    trained = write_trained(BANDS_AND_ONE_CLASS, base=segmentor.config)
    facts = export_model(*trained, ExportTarget(tmp_path / "model.pt2")).metadata
    assert facts["channel_order"] == "as LoadRasterFromFile(bands=(4, 1)) gives them"
    assert json.loads(facts["mean"]) == [5.5, 6.5] and json.loads(facts["std"]) == [1, 2]
    logits = torch.export.load(tmp_path / "model.pt2").module()(torch.zeros(1, 2, 96, 128))
    assert logits.shape == (1, 1, 96, 128)

    classes = json.loads(facts["classes"])
    assert classes == ["background", "shape"] and facts["threshold"] == "0.5"
    results = runtime.Segmentation(np.eye(64, 96, dtype=np.uint8))
    assert [region["name"] for region in runtime.to_json(results, classes)["regions"]] == classes
    assert runtime.draw(np.zeros((64, 96, 3), np.uint8), results, classes).shape[1] > 96  # with a legend


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("patch_size", [16, 8])
def test_torchscript_exporter_of_mmdeploy_keeps_sizes_variable(patch_size, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = fill(XCiT(dict(embed_dim=32, depth=4, num_heads=4, eta=1.0), patch_size, out_indices=(0, 1, 2, 3)))
    axes = {"image": {0: "batch", 2: "height", 3: "width"}}
    with torch.no_grad():
        torch.onnx.export(
            model, (torch.zeros(1, 3, 352, 448),), tmp_path / "model.onnx", dynamo=False, opset_version=17,
            input_names=["image"], dynamic_axes=axes,
        )  # fmt: skip
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        for shape in [(2, 3, 75, 101), (1, 3, 640, 480)]:  # fewer and more chunks
            image = torch.randn(shape)
            for found, expected in zip(session.run(None, {"image": image.numpy()}), model(image), strict=True):
                torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-3)


def test_backbone_of_a_detector_in_torch_export_format(write_trained, call, tmp_path):
    out = tmp_path / "backbone.pt2"
    trained = write_trained(DETECTOR, part="backbone", depth=3, out_indices=(0, 1, 2))
    code, printed, _ = call("export", *trained, "--out", out, "--part", "backbone")
    assert code == 0 and "stride16        within" in printed and "arch            32x3x4" in printed
    extra = {"metadata.json": ""}
    program = torch.export.load(out, extra_files=extra).module()
    assert json.loads(extra["metadata.json"])["task"] == "backbone"
    backbone = backbone_from_config(Config.fromfile(trained.config), trained.checkpoint)
    with torch.no_grad():
        for shape in [(1, 3, 64, 97), (3, 3, 160, 72)]:
            image = torch.randn(shape)
            for found, expected in zip(program(image), backbone(image), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_deviating_file_is_not_written(small, tmp_path, monkeypatch):
    def broken(model: nn.Module) -> nn.Module:
        model = exportable(model)
        model.blocks[0].gamma1.data *= 1.1
        return model

    out = tmp_path / "backbone.pt2"
    monkeypatch.setattr(export, "exportable", broken)
    out.write_text("an earlier file")
    with pytest.raises(RuntimeError, match=r"deviates by .* from torch"):
        export_model(*small, ExportTarget(out, "backbone"))
    assert out.read_text() == "an earlier file"
    assert list(tmp_path.iterdir()) == [out]


def test_export_that_cannot_succeed_ends_in_one_line(small, segmentor, tmp_path, monkeypatch):
    detector, checkpoint = small
    configs = dict(
        resnet="_base_ = 'mmdet::_base_/models/faster-rcnn_r50_fpn.py'\ndefault_scope = 'mmdet'",
        untested=f"_base_ = '{detector}'\ntest_dataloader = test_evaluator = test_cfg = None\n",
        unregistered=f"_base_ = '{segmentor.config}'\ntest_dataloader = dict(dataset=dict(type='MyData'))\n",
    )
    configs["slide"] = f"_base_ = '{segmentor.config}'\nmodel = dict(test_cfg=dict(mode='slide'))\n"
    for name, text in configs.items():
        (tmp_path / f"{name}.py").write_text(text)
        configs[name] = str(tmp_path / f"{name}.py")
    state = torch.load(checkpoint)["state_dict"]
    classifier = str(tmp_path / "classifier.pth")
    torch.save({key: value for key, value in state.items() if not key.startswith("fpn")}, classifier)
    before = sorted(tmp_path.iterdir())
    pt2, onnx = tmp_path / "model.pt2", tmp_path / "model.onnx"
    for config, file, target, options, error, message in [
        (detector, checkpoint, (pt2,), {}, ValueError, r"a whole detector is exported to \.onnx only"),
        (detector, classifier, (pt2, "backbone"), {}, ValueError, "pyramid, which would be random"),
        (segmentor.config, checkpoint, (pt2,), {}, ValueError, "does not fit the model"),
        (configs["resnet"], checkpoint, (pt2,), {}, ValueError, "backbone is ResNet"),
        (configs["untested"], checkpoint, (pt2, "backbone"), {}, ValueError, "the config has no test_dataloader"),
        (configs["unregistered"], checkpoint, (pt2,), {}, ValueError, "no data set of type MyData is registered"),
        (detector, "none.pth", (pt2, "backbone"), {}, FileNotFoundError, "no checkpoint at none.pth"),
        (detector, checkpoint, (tmp_path / "model.pth",), {}, ValueError, r"\.onnx or \.pt2"),
        (detector, checkpoint, (tmp_path / "no" / "model.pt2",), {}, FileNotFoundError, "no folder"),
        (detector, checkpoint, (onnx, "head"), {}, ValueError, "part='head' in precision='float32': must be"),
        (*segmentor, (pt2, "model", "float16"), {}, ValueError, "name it .onnx"),
        (*segmentor, (onnx, "backbone", "float16"), {}, ValueError, "the backbone: only whole models"),
        (
            *segmentor,
            (pt2, "model", "int8"),
            dict(calibration="images"),
            ValueError,
            r"only \.onnx files are float16, int8 or",
        ),
        (*segmentor, (onnx, "model", "int8"), {}, ValueError, "int8 alone needs calibration images"),
        (*segmentor, (onnx,), dict(calibration="images"), ValueError, "int8 alone needs calibration images"),
        (*segmentor, (onnx, "backbone", "int8"), dict(calibration="images"), ValueError, "a backbone has no score"),
        (
            *segmentor,
            (onnx, "model", "float16", False, (64, 64)),
            {},
            ValueError,
            r"size=\(64, 64\): only whole models",
        ),
        (*segmentor, (onnx, "model", "float32", False, (64, 16)), {}, ValueError, "must be 32 or more a side"),
        (*segmentor, (onnx, "model", "float32", False, (64, 80)), {}, ValueError, "multiples of .* size_divisor=32"),
        (
            *segmentor,
            (onnx, "model", "float32", False, (64, 64)),
            dict(evaluate=1),
            ValueError,
            "--evaluate with --size",
        ),
        (*segmentor, (pt2, "model", "float32", True), {}, ValueError, r"only .* preprocess images: name it"),
        (*segmentor, (onnx, "backbone", "float32", True), {}, ValueError, "not to a backbone"),
        (configs["slide"], segmentor.checkpoint, (onnx, "model", "float32", True), {}, ValueError, "mode='slide'"),
    ]:
        with pytest.raises(error, match=message) as raised:
            export_model(config, file, ExportTarget(*target), **options)
        assert "\n" not in str(raised.value) and sorted(tmp_path.iterdir()) == before
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime.*xcit_mm\[export\]"):
        export_model(detector, checkpoint, ExportTarget(onnx))


@pytest.mark.usefixtures("exported_before")
def test_sliding_windows_are_compared_and_scored_as_in_mmseg(segmentor, tmp_path):
    config = tmp_path / "slide.py"
    windows = "dict(mode='slide', crop_size=(64, 96), stride=(40, 64))"
    config.write_text(f"_base_ = '{segmentor.config}'\nmodel = dict(test_cfg={windows})\n")
    report = export_model(str(config), segmentor.checkpoint, ExportTarget(tmp_path / "model.onnx"), evaluate=2)
    assert report.outputs["logits"].startswith("within") and json.loads(report.metadata["test_cfg"])["stride"] == [
        40,
        64,
    ]
    assert report.scores["mIoU"]["float32"] == pytest.approx(report.scores["mIoU"]["torch"], abs=0.2)
    assert report.metadata["min_side"] == "32"


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(test_cfg=None), r"model\.test_cfg\.mode=None: must be one of whole, slide"),
        (dict(decode_head=[dict(num_classes=1)]), "a cascade of one channel cannot be exported"),
        (
            dict(backbone=dict(ignore_padding=True), data_preprocessor=dict(test_cfg=dict(size=(64, 64)))),
            "size_divisor",
        ),
    ],
)
def test_segmentor_that_cannot_be_exported_is_named(options, message, segmentor):
    cfg = Config.fromfile(segmentor.config)
    for key, value in options.items():
        cfg.model[key] = cfg.model[key] | value if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=message) as raised:
        check_segmentor(cfg)
    assert "\n" not in str(raised.value)


def test_classes_are_those_of_the_training(segmentor, tmp_path):
    cfg, model = segmentor.load()
    assert class_names(cfg, model, segmentor.checkpoint)[1:] == ["circle", "square", "triangle", "star"]
    own, checkpoint = ["a", "b", "c", "d", "e"], str(tmp_path / "own.pth")
    torch.save(dict(meta=dict(dataset_meta=dict(classes=own)), state_dict={}), checkpoint)
    assert class_names(cfg, model, checkpoint) == own
    cfg.test_dataloader.dataset.metainfo = dict(classes=("one", "two", "three"))
    assert class_names(cfg, model, checkpoint) == own
    with pytest.raises(ValueError, match=r"^3 names \(one, \.\.\.\) for the 5 classes of the model: give the data set"):
        class_names(cfg, model, segmentor.checkpoint)


def test_unfinished_files_of_killed_exports_are_removed(tmp_path):
    hold = "import sys, time; from pathlib import Path; from xcit_mm.deployment.formats import working_folder\n"
    hold += "with working_folder(Path(sys.argv[1])) as folder: (folder / 'x').touch(); print('in', flush=True); "
    hold += "time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"in\n"
        with working_folder(tmp_path):
            assert len(list(tmp_path.iterdir())) == 2  # a running export keeps its folder
    finally:
        process.kill()
        process.wait()
    assert len(list(tmp_path.iterdir())) == 1
    with working_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("exported_before")
def test_terminated_export_leaves_nothing(segmentor, tmp_path, monkeypatch):
    tool, handler = importlib.import_module("export"), signal.getsignal(signal.SIGTERM)
    compare = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(export, "compare_maps", compare)
    monkeypatch.setattr(sys, "argv", ["export.py", *map(str, segmentor), "--out", str(tmp_path / "model.onnx")])
    try:
        with pytest.raises(SystemExit) as end:
            tool.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert end.value.code == 128 + signal.SIGTERM and list(tmp_path.iterdir()) == []


def test_backbone_of_another_library_with_this_name_is_rejected(tmp_path):
    registry = Registry("model", parent=MODELS, scope="xcitlib")
    registry.register_module(name="XCiT", module=nn.Identity)
    cfg = Config.fromfile(ROOT / "configs" / "demo" / "fpn_xcit-n12-p16_shapes.py")
    target = ExportTarget(tmp_path / "model.onnx")
    try:
        cfg.model.backbone.type = "mmengine.XCiT"
        target.check_model(cfg)
        cfg.model.backbone.type = "xcitlib.XCiT"
        with pytest.raises(ValueError, match=r"^the config's backbone is xcitlib.XCiT: only"):
            target.check_model(cfg)
    finally:
        del MODELS._children["xcitlib"]


def test_old_torch_is_rejected_before_anything_is_read(refusal, monkeypatch):
    monkeypatch.delattr(torch.export.Dim, "DYNAMIC", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    line = refusal("export", "none.py", "none.pth", "--out", "model.pt2")
    assert line == "RuntimeError: torch 2.4.0 cannot trace images of any size: export with torch 2.6 or newer"


def test_closed_pipe_ends_the_tool_without_a_traceback(close_stdout, tmp_path, monkeypatch):
    tool, out = importlib.import_module("export"), tmp_path / "model.onnx"
    out.touch()
    monkeypatch.setattr(tool, "export_model", lambda *_: ExportReport(dict(logits="within 0 of torch"), {}))
    monkeypatch.setattr(sys, "argv", ["export.py", "config.py", "model.pth", "--out", str(out)])
    close_stdout()
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == 141
    sys.stdout.flush()
