"""Arguments of the backbone that do not fit the data preprocessor or the padding raise before a model is built."""

from collections.abc import Iterator

import pytest
from doctor_data import MASK_RCNN, SHAPES
from mmengine.config import Config
from mmengine.registry import MODELS, Registry

from xcit_mm import XCiT
from xcit_mm.checks.preflight import check_backbone, check_imports

pytestmark = pytest.mark.usefixtures("doctors_place")


@pytest.fixture
def another_library() -> Iterator[str]:
    """Scope of a library with its own XCiT, as mmpretrain has."""
    registry = Registry("model", parent=MODELS, scope="xcitlib")

    @registry.register_module(name="XCiT")
    class Theirs:
        def __init__(self, embed_dims: int) -> None: ...

    yield "xcitlib"
    del MODELS._children["xcitlib"]


@pytest.mark.parametrize("default_scope, name", [("xcitlib", "XCiT"), ("mmseg", "xcitlib.XCiT")])
def test_backbone_of_another_library_is_not_checked(default_scope, name, another_library):
    cfg = Config(dict(default_scope=default_scope, model=dict(backbone=dict(type=name, embed_dims=192))))
    check_backbone(cfg)
    assert list(check_imports(cfg)) == []


@pytest.mark.parametrize("kind", ["XCiT", "mmengine.XCiT", XCiT])
def test_xcit_is_checked_by_any_name(kind):
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.type = kind
    check_backbone(cfg)
    cfg.model.backbone.arch = "s13"
    with pytest.raises(ValueError, match="unknown arch 's13'"):
        check_backbone(cfg)
    cfg.model.backbone.arch = dict(embed_dim=32, depth=12, num_heads=3, eta=1.0)
    with pytest.raises(ValueError, match="num_heads=3 does not divide embed_dim=32"):
        check_backbone(cfg)


@pytest.mark.parametrize("config", [SHAPES, MASK_RCNN])
def test_mean_of_other_bands_raises(config):
    cfg = Config.fromfile(config)
    cfg.model.backbone.in_channels = 4
    with pytest.raises(ValueError, match=r"data_preprocessor\.mean has 3 values, the backbone has in_channels=4: give"):
        check_backbone(cfg)
    cfg.model.data_preprocessor.update(mean=[1.5], std=[1.0])
    check_backbone(cfg)
    cfg.model.data_preprocessor.update(mean=None, std=None)
    check_backbone(cfg)
