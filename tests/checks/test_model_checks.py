"""The doctor knows the backbone by any name, and what a data preprocessor may be."""

import pytest
from helpers.doctor_data import SHAPES, failures
from mmengine.config import Config
from mmengine.registry import MODELS, Registry

from xcit_mm import XCiT
from xcit_mm.models.build import check_backbone

pytestmark = pytest.mark.usefixtures("doctors_place")

# A library with its own XCiT, as mmpretrain has.
OTHERS = Registry("model", parent=MODELS, scope="xcitlib")


@OTHERS.register_module(name="XCiT")
class AnotherXCiT:
    def __init__(self, embed_dims: int) -> None: ...


@pytest.mark.parametrize("default_scope, name", [("xcitlib", "XCiT"), ("mmseg", "xcitlib.XCiT")])
def test_backbone_of_another_library_is_not_checked(default_scope, name):
    backbone = dict(type=name, embed_dims=192)
    check_backbone(Config(dict(default_scope=default_scope, model=dict(backbone=backbone))))


@pytest.mark.parametrize("name", ["XCiT", "mmengine.XCiT", XCiT])
def test_xcit_is_checked_by_any_name(name):
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.type = name
    check_backbone(cfg)
    cfg.model.backbone.arch = "s13"
    with pytest.raises(ValueError, match="s13"):
        check_backbone(cfg)


@pytest.mark.parametrize("mean", ["[1.5]", "[1.5,1.5,1.5,1.5]", "None"])
def test_mean_of_all_bands_or_of_each_is_right(mean):
    preprocessor = [f"model.data_preprocessor.{key}={mean}" for key in ("mean", "std")]
    assert failures(SHAPES, "model.backbone.in_channels=4", *preprocessor) == []
