"""The configs that the README and docs/backbone.md show to copy build, and say what their base must leave."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from pages import blocks
from paths import ROOT

from xcit_mm import XCiT
from xcit_mm.checks.config import check_optimizer
from xcit_mm.checks.model import build_model, check_channels
from xcit_mm.checks.preflight import check_backbone
from xcit_mm.utils.configs import read_config


def shown(page: str) -> list[str]:
    """The configs of a page that begin with their base."""
    return [code for _, code in blocks(ROOT / page) if code.startswith('_base_ = "mm')]


DETECTOR, SEGMENTOR = shown("docs/backbone.md")


def read(text: str, folder: Path) -> Config:
    (folder / "my_config.py").write_text(text)
    return read_config(str(folder / "my_config.py"), [])


def test_the_readme_shows_the_page_s_detector():
    (config,) = shown("README.md")
    assert [re.sub("  #.*", "", line) for line in config.splitlines()] == [
        re.sub("  #.*", "", line) for line in DETECTOR.splitlines()
    ]


@pytest.mark.parametrize("text", [DETECTOR, SEGMENTOR], ids=["detector", "segmentor"])
def test_it_builds_and_its_parts_fit(text, tmp_path):
    cfg = read(text, tmp_path)
    init_default_scope(cfg.default_scope)
    check_backbone(cfg)
    cfg.model.backbone.init_cfg = None  # nothing is downloaded
    model = build_model(cfg)
    assert isinstance(model.backbone, XCiT)
    (line,) = map(str, check_channels(cfg, model))
    assert line.startswith("ok ")
    assert check_optimizer(cfg) == []
    recipe = {"mmdet": "xcit_amp-ms-crop-3x_coco", "mmseg": "xcit_80k_ade20k-512x512"}[cfg.default_scope]
    expected = Config.fromfile(ROOT / "configs" / "_base_" / f"{recipe}.py").optim_wrapper
    expected.optimizer.pop("betas")  # AdamW's own
    assert cfg.optim_wrapper.optimizer == expected.optimizer
    assert cfg.optim_wrapper.paramwise_cfg == expected.paramwise_cfg


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("    pretrained=None,", "    #", r"model.pretrained='open-mmlab://resnet50_v1c' .* set pretrained=None"),
        (
            "    decode_head",
            "    neck=dict(in_channels=[1]),\n    decode_head",
            "model.neck has no type, as the base config",
        ),
    ],
)
def test_what_the_base_leaves_is_named(old, new, message, tmp_path):
    assert old in SEGMENTOR
    with pytest.raises(ValueError, match=message) as raised:
        check_backbone(read(SEGMENTOR.replace(old, new), tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text, advised", [(DETECTOR, "lr=0.0001, weight_decay=0.05"), (SEGMENTOR, "lr=6e-05")])
def test_sgd_of_the_base_is_noted(text, advised, tmp_path):
    (finding,) = check_optimizer(read(text[: text.index("optim_wrapper")], tmp_path))
    assert (finding.level, finding.code) == ("note", "D205") and "lr=0.0" in finding.text and advised in finding.fix
