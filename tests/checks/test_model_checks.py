"""The doctor reports parts of a model that do not fit each other."""

from collections.abc import Iterator

import pytest
from helpers.doctor_data import RETINANET, SHAPES, assert_named, failures
from helpers.paths import CONFIGS
from mmengine.config import Config
from mmengine.registry import MODELS, Registry

from xcit_mm import XCiT
from xcit_mm.models.build import check_backbone

pytestmark = pytest.mark.usefixtures("doctors_place")


@pytest.mark.parametrize(
    "config, option, expected",
    [
        (
            RETINANET,
            "model.neck.start_level=1",  # as in mmdet's own RetinaNet
            ("D606", "bbox_head", "8, 16, 32, 64, 128", "the neck", "16, 32, 64, 128, 256"),
        ),
        (
            CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-lsj-50e_coco.py",
            "model.panoptic_head.pixel_decoder.strides=(8,16,32,64)",
            (
                "D606",
                "panoptic_head.pixel_decoder",
                "8, 16, 32, 64",
                "the backbone",
                "4, 8, 16, 32",
            ),
        ),
    ],
    ids=["start_level", "Mask2Former"],
)
def test_wrong_strides_are_a_failure(config, option, expected):
    assert_named(failures(config, option), [expected])


def test_mask2former_of_mmseg_in_windows_is_refused_by_name():
    config = CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512.py"
    (found, *_) = failures(config, "model.test_cfg.mode=slide")
    assert (
        "Mask2FormerHead of mmseg predicts whole images only" in found.text
        and "D311" not in found.code
    )


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
    cfg = Config(
        dict(default_scope=default_scope, model=dict(backbone=dict(type=name, embed_dims=192)))
    )
    check_backbone(cfg)


@pytest.mark.parametrize("kind", ["XCiT", "mmengine.XCiT", XCiT])
def test_xcit_is_checked_by_any_name(kind):
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.type = kind
    check_backbone(cfg)
    cfg.model.backbone.arch = "s13"
    with pytest.raises(ValueError, match="unknown arch 's13'"):
        check_backbone(cfg)


@pytest.fixture
def four_bands() -> Config:
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.in_channels = 4
    return cfg


def test_mean_of_other_bands_raises(four_bands):
    message = r"data_preprocessor\.mean has 3 values, the backbone has in_channels=4: give"
    with pytest.raises(ValueError, match=message):
        check_backbone(four_bands)


@pytest.mark.parametrize("values", [[1.5], [1.5] * 4, None], ids=["one", "four", "none"])
def test_mean_of_all_bands_or_of_each_is_right(values, four_bands):
    four_bands.model.data_preprocessor.update(mean=values, std=values)
    check_backbone(four_bands)
