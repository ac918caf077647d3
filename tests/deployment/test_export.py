"""Exported files give what torch gives, at any size, with operators that every runtime has."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden import fill
from mmengine.config import Config
from mmengine.registry import MODELS, Registry, init_default_scope
from paths import ROOT
from torch import nn

from xcit_mm import XCiT
from xcit_mm.deployment import export
from xcit_mm.deployment.traceable import BinAverage, exportable

# Two levels suffice to meet every operator of a head; 3 with a patch of 8 upsample, keep and pool.
FPN = """
_base_ = "{root}/configs/demo/fpn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0), out_indices=(0, 1)),
    neck=dict(in_channels=[32] * 2, out_channels=16, num_outs=2),
    decode_head=dict(
        in_channels=[16] * 2, in_index=[0, 1], feature_strides=[4, 8], channels=16, align_corners={align_corners}
    ),
)
"""
TWO_BANDS = """
_base_ = "{base}"
model = dict(backbone=dict(in_channels=2), data_preprocessor=dict(mean=None, std=None))
load = dict(type="LoadRasterFromFile", bands=(4, 1))
normalize = dict(type="Normalize", mean=[5.5, 6.5], std=[1, 2], to_rgb=False)
test_dataloader = dict(dataset=dict(pipeline=[load, normalize]))
"""
ONE_CLASS = """
_base_ = "{base}"
model = dict(decode_head=dict(num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)))
test_dataloader = dict(dataset=dict(metainfo=dict(classes=("shape",), palette=[(230, 60, 50)])))
"""
UPERNET = """
_base_ = "{root}/configs/upernet/upernet_xcit-t12-p16_8xb2-160k_ade20k-512x512.py"
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=1, num_heads=4, eta=1.0), out_indices=(0,)),
    decode_head=dict(in_channels=[32], in_index=[0], channels=16),
    auxiliary_head=dict(in_channels=32, in_index=0, channels=16),
)
"""
MASK_RCNN = """
_base_ = "{root}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=3, num_heads=4, eta=1.0),
        out_indices=(0, 1, 2),
        patch_size=8,
    ),
)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Writes a config and a checkpoint of its model, or of its backbone alone; returns both paths and the model."""

    def write(text: str, part: str = "model", **kwargs) -> tuple[str, str, nn.Module]:
        folder = tmp_path_factory.mktemp("model")
        config, checkpoint = folder / "config.py", folder / "model.pth"
        config.write_text(text.format(root=ROOT, **kwargs))
        cfg = Config.fromfile(config)
        init_default_scope(cfg.default_scope)
        cfg.model.backbone.pop("init_cfg", None)
        model = fill(MODELS.build(cfg.model if part == "model" else cfg.model.backbone))
        torch.save(dict(state_dict=model.state_dict()), checkpoint)
        return str(config), str(checkpoint), model

    return write


@pytest.mark.parametrize("output_size", [1, 2, 3, 6, (3, 7)])
@pytest.mark.parametrize("height, width", [(1, 5), (2, 7), (13, 32), (25, 6)])
def test_average_of_bins_is_adaptive_pooling(output_size, height, width):
    x = torch.randn(2, 4, height, width, dtype=torch.double)
    torch.testing.assert_close(BinAverage(output_size)(x), F.adaptive_avg_pool2d(x, output_size))


@pytest.mark.parametrize("given, used", [("auto", "covariance"), ("plain", "plain"), ("gram", "gram")])
def test_what_is_traced_is_a_copy_in_one_form_with_folded_batch_norm(given, used):
    model = fill(XCiT(dict(embed_dim=32, depth=1, num_heads=4, eta=1.0), out_indices=(0,), attn_implementation=given))
    x = torch.randn(1, 3, 75, 101)
    with torch.no_grad():
        before = model(x)[0]
        ready = exportable(model)
        torch.testing.assert_close(ready(x)[0], before, rtol=1e-4, atol=1e-4)
        assert torch.equal(model(x)[0], before)
    assert (model.blocks[0].attn.implementation, ready.blocks[0].attn.implementation) == (given, used)
    norms = [name for name, m in ready.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms == ["blocks.0.local_mp.bn"]


@pytest.mark.parametrize(
    "text, kwargs", [pytest.param(FPN, dict(align_corners=True), marks=pytest.mark.slow), (UPERNET, {})]
)
def test_a_segmentor_in_onnx(text, kwargs, trained, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config, checkpoint, model = trained(text, **kwargs)
    out = tmp_path / "model.onnx"
    exported = export.export_model(config, checkpoint, out)
    assert list(tmp_path.iterdir()) == [out]  # weights and all

    file = onnx.load(out)
    onnx.checker.check_model(file, full_check=True)
    assert [one.domain for one in file.opset_import] == [""] and not file.functions
    kinds = {node.op_type for node in file.graph.node}
    assert not kinds & {"If", "Loop", "Scan", "Einsum"}
    assert kinds == set(exported.operators) and exported.operators["MatMul"] > 10
    dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in file.graph.input]
    assert dims == [["batch", 3, "height", "width"]]
    assert str(ROOT).encode() not in out.read_bytes() and b"site-packages" not in out.read_bytes()

    metadata = {one.key: one.value for one in file.metadata_props}
    assert metadata == exported.metadata
    assert (metadata["task"], metadata["patch_size"]) == ("semantic segmentation", "16")
    assert (metadata["arch"], metadata["channel_order"]) == (f"32x{len(model.backbone.blocks)}x4", "RGB")
    assert json.loads(metadata["mean"]) == [123.675, 116.28, 103.53]
    assert len(json.loads(metadata["classes"])) == model.decode_head.num_classes

    session = runtime.InferenceSession(out)
    for batch, height, width in [(1, 64, 97), (3, 160, 72), (1, 33, 47)]:  # the last is below torch.export's least
        image = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            expected = model.inference(image, [dict(ori_shape=(height, width), img_shape=(height, width))] * batch)
        (logits,) = session.run(["logits"], {"image": image.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-3, atol=1e-3)


def test_both_labels_of_a_segmentor_of_one_class_have_names(trained, tmp_path):
    (tmp_path / "fpn.py").write_text(FPN.format(root=ROOT, align_corners=False))
    config, _, model = trained(ONE_CLASS, base=tmp_path / "fpn.py")
    metadata = export._metadata(Config.fromfile(config), model)
    classes = json.loads(metadata["classes"])
    assert classes == ["background", "shape"] and metadata["threshold"] == "0.5"
    pytest.importorskip("onnxruntime")
    run = importlib.import_module("xcit_mm.deployment.run")
    found = run.Segmentation(np.eye(64, 96, dtype=np.uint8))
    assert [one["name"] for one in run.to_json(found, classes)["regions"]] == classes
    assert run.draw(np.zeros((64, 96, 3), np.uint8), found, classes).shape[1] > 96  # with a legend


def test_other_bands_are_told_by_the_step_that_loads_them(trained, tmp_path):
    (tmp_path / "fpn.py").write_text(FPN.format(root=ROOT, align_corners=False))
    config, checkpoint, _ = trained(TWO_BANDS, base=tmp_path / "fpn.py")
    metadata = export.export_model(config, checkpoint, tmp_path / "model.pt2").metadata
    assert metadata["channel_order"] == "as LoadRasterFromFile(bands=(4, 1)) gives them"
    assert json.loads(metadata["mean"]) == [5.5, 6.5] and json.loads(metadata["std"]) == [1, 2]
    found = torch.export.load(tmp_path / "model.pt2").module()(torch.zeros(1, 2, 96, 128))
    assert found.shape == (1, 5, 96, 128)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("patch_size", [16, 8])
def test_torchscript_s_exporter_keeps_sizes_variable(patch_size, tmp_path):
    """It is the one that mmdeploy uses."""
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


def test_the_backbone_of_a_detector_in_torch_s_format(trained, tool, tmp_path):
    config, checkpoint, model = trained(MASK_RCNN)
    run = tool("export", config, checkpoint, "--out", tmp_path / "backbone.pt2", "--part", "backbone")
    assert run.returncode == 0, run.stderr
    assert "stride16        within" in run.stdout and "arch            32x3x4" in run.stdout
    extra = {"metadata.json": ""}
    program = torch.export.load(tmp_path / "backbone.pt2", extra_files=extra).module()
    assert json.loads(extra["metadata.json"])["task"] == "backbone"
    with torch.no_grad():
        for shape in [(1, 3, 64, 97), (3, 3, 160, 72)]:
            image = torch.randn(shape)
            for found, expected in zip(program(image), model.backbone(image), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture
def small(trained) -> tuple[str, str]:
    """A backbone of one block, fast to export."""
    text = MASK_RCNN.replace("depth=3", "depth=1").replace("(0, 1, 2)", "(0,)")
    return trained(text, part="backbone")[:2]


def test_a_file_that_deviates_is_not_written(small, tmp_path, monkeypatch):
    def broken(model: nn.Module) -> nn.Module:
        model = exportable(model)
        model.blocks[0].gamma1.data *= 1.1
        return model

    out = tmp_path / "backbone.pt2"
    monkeypatch.setattr(export, "exportable", broken)
    out.write_text("an earlier file")
    with pytest.raises(RuntimeError, match=r"deviates by .* from torch"):
        export.export_model(*small, out, "backbone")
    assert out.read_text() == "an earlier file"
    assert list(tmp_path.iterdir()) == [out]


def test_what_cannot_be_exported_is_one_line(small, trained, tmp_path, monkeypatch):
    detector, checkpoint = small
    segmentor, _, _ = trained(FPN, align_corners=False)
    fasterrcnn = tmp_path / "resnet.py"
    fasterrcnn.write_text("_base_ = 'mmdet::_base_/models/faster-rcnn_r50_fpn.py'\ndefault_scope = 'mmdet'")
    untested = tmp_path / "untested.py"
    untested.write_text(f"_base_ = '{detector}'\ntest_dataloader = test_evaluator = test_cfg = None\n")
    unregistered = tmp_path / "unregistered.py"
    unregistered.write_text(f"_base_ = '{segmentor}'\ntest_dataloader = dict(dataset=dict(type='MyData'))\n")
    state = torch.load(checkpoint)["state_dict"]
    classifier = tmp_path / "classifier.pth"
    torch.save({key: value for key, value in state.items() if not key.startswith("fpn")}, classifier)
    out = tmp_path / "model.pt2"
    for config, file, path, part, error, message in [
        (detector, checkpoint, out, "model", ValueError, r"a whole detector is written as \.onnx only"),
        (detector, str(classifier), out, "backbone", ValueError, "pyramid, which would be random"),
        (segmentor, checkpoint, out, "model", ValueError, "does not fit the model"),
        (str(fasterrcnn), checkpoint, out, "model", ValueError, "backbone is ResNet"),
        (str(untested), checkpoint, out, "backbone", ValueError, "the config has no test_dataloader"),
        (str(unregistered), checkpoint, out, "model", ValueError, "no data set of type MyData is registered"),
        (detector, "none.pth", out, "backbone", FileNotFoundError, "no checkpoint at none.pth"),
        (detector, checkpoint, tmp_path / "model.pth", "model", ValueError, r"\.onnx or \.pt2"),
        (detector, checkpoint, tmp_path / "no" / "model.pt2", "model", FileNotFoundError, "no folder"),
    ]:
        with pytest.raises(error, match=message) as raised:
            export.export_model(config, file, path, part)
        assert "\n" not in str(raised.value)
        assert not path.exists()
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime.*requirements/export\.txt"):
        export.export_model(detector, checkpoint, tmp_path / "model.onnx")


def test_the_backbone_is_known_by_its_class(tmp_path):
    registry = Registry("model", parent=MODELS, scope="xcitlib")
    registry.register_module(name="XCiT", module=nn.Identity)
    cfg = Config.fromfile(ROOT / "configs" / "demo" / "fpn_xcit-n12-p16_shapes.py")
    try:
        cfg.model.backbone.type = "mmengine.XCiT"
        export._check_part(cfg, "model", tmp_path / "model.onnx")
        cfg.model.backbone.type = "xcitlib.XCiT"
        with pytest.raises(
            ValueError, match=r"^the config's backbone is xcitlib.XCiT: only models with this package's"
        ):
            export._check_part(cfg, "model", tmp_path / "model.onnx")
    finally:
        del MODELS._children["xcitlib"]


def test_a_torch_that_is_too_old_is_named_before_anything_is_read(refusal, monkeypatch):
    monkeypatch.delattr(export.Dim, "DYNAMIC", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    line = refusal("export", "none.py", "none.pth", "--out", "model.pt2")
    assert line == "RuntimeError: torch 2.4.0 traces no images of any size: export with torch 2.6 or newer"


def test_a_reader_that_leaves_early_sees_no_traceback(print_to_nobody, tmp_path, monkeypatch):
    tool, out = importlib.import_module("export"), tmp_path / "model.onnx"
    out.touch()
    exported = export.Exported(dict(logits="within 0 of torch"), {})
    monkeypatch.setattr(tool, "export_model", lambda **_: exported)
    monkeypatch.setattr(sys, "argv", ["export.py", "config.py", "model.pth", "--out", str(out)])
    print_to_nobody()
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == 141
    sys.stdout.flush()
