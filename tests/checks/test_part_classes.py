"""Parts of a config are known by their class: by any name of it, and not by a name that another library has too."""

from collections.abc import Iterator

import pytest
import torch
from doctor_data import SEMANTIC_FPN, SHAPES, assert_named, failures, findings
from mmengine.config import Config
from mmengine.registry import MODELS, Registry, init_default_scope

from xcit_mm import XCiT
from xcit_mm.checks.config import check_imports
from xcit_mm.checks.findings import raise_first
from xcit_mm.checks.machine import check_precision
from xcit_mm.checks.preflight import check_backbone
from xcit_mm.checks.start import check_test

pytestmark = pytest.mark.usefixtures("doctors_place")
NAMED = "model.backbone.type=mmengine.XCiT"


@pytest.fixture
def another_library() -> Iterator[str]:
    """Scope of a library with an XCiT of its own, as mmpretrain has."""
    registry = Registry("model", parent=MODELS, scope="xcitlib")

    @registry.register_module(name="XCiT")
    class Theirs:
        def __init__(self, embed_dims: int) -> None: ...

    yield "xcitlib"
    del MODELS._children["xcitlib"]


@pytest.mark.parametrize("default_scope, name", [("xcitlib", "XCiT"), ("mmseg", "xcitlib.XCiT")])
def test_the_backbone_of_another_library_is_left_alone(default_scope, name, another_library):
    cfg = Config(dict(default_scope=default_scope, model=dict(backbone=dict(type=name, embed_dims=192))))
    check_backbone(cfg)
    assert check_imports(cfg) == []


@pytest.mark.parametrize("kind", ["XCiT", "mmengine.XCiT", XCiT])
def test_ours_is_checked_by_any_of_its_names(kind):
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.type = kind
    check_backbone(cfg)
    cfg.model.backbone.arch = "s13"
    with pytest.raises(ValueError, match="unknown arch 's13'"):
        check_backbone(cfg)


def test_bands_are_compared_by_any_name():
    options = [NAMED, "model.backbone.in_channels=4"]
    assert_named(failures(SHAPES, *options)[:1], [("D601", "model.data_preprocessor.mean", 3, "in_channels=4")])
    options += ["model.data_preprocessor.mean=[1.5]", "model.data_preprocessor.std=[1]"]
    expected = [("D317", "train", 3, "in_channels=4"), ("D317", "val", 3, "in_channels=4")]
    assert_named(failures(SHAPES, *options), expected)


def test_hooks_are_known_by_any_name(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(f"_base_ = {str(SHAPES)!r}\ncustom_hooks = [dict(type='mmengine.StrictLoadHook')]\n")
    assert "D701" not in [finding.code for finding in findings(config)]
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict={key: state[key] for key in state if "conv_seg" not in key}), "headless.pth")
    with pytest.raises(ValueError, match=r"headless\.pth: the checkpoint does not fit the model"):
        check_test(cfg, "headless.pth")


def test_the_ignored_label_of_scores_is_known_by_any_name():
    options = ["val_evaluator.type=mmseg.IoUMetric", "val_evaluator.ignore_index=0"]
    labels = ("decode_head.ignore_index=255", "data_preprocessor.seg_pad_val=255", "val_evaluator.ignore_index=0")
    assert_named(failures(SEMANTIC_FPN, *options), [("D509", *labels)])


def test_mixed_precision_is_known_by_any_name(monkeypatch):
    monkeypatch.setattr("xcit_mm.checks.machine.get_device", lambda: "cpu")
    cfg = Config.fromfile(SHAPES)
    cfg.optim_wrapper.type = "mmengine.AmpOptimWrapper"
    with pytest.raises(ValueError, match="the config trains in mixed precision"):
        raise_first(check_precision(cfg))
