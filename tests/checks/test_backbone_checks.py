"""Arguments of the backbone that do not fit the data preprocessor or the padding raise before a model is built."""

from collections.abc import Iterator

import pytest
from doctor_data import FOUR_BANDS, MASK_RCNN, SHAPES
from mmengine.config import Config
from mmengine.registry import MODELS, Registry

from xcit_mm import XCiT
from xcit_mm.checks.config import check_imports
from xcit_mm.checks.model import build_model
from xcit_mm.checks.preflight import check_backbone
from xcit_mm.deployment.preprocessing import preprocessing_steps
from xcit_mm.utils.configs import channel_order, image_side, normalisation

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
    assert check_imports(cfg) == []


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


@pytest.mark.parametrize(
    "config, channels, options, message",
    [
        (SHAPES, 1, {}, "model.data_preprocessor.mean has 3 values, the backbone has in_channels=1: give one"),
        (MASK_RCNN, 4, {}, "model.data_preprocessor.mean has 3 values, the backbone has in_channels=4"),
        (
            MASK_RCNN,
            4,
            dict(mean=[1, 2, 3, 4], std=[1, 1, 1, 1]),
            r"DetDataPreprocessor takes 1 or 3: set mean and std to None and put dict\(type='Normalize'",
        ),
    ],
)
def test_mean_of_other_bands_raises(config, channels, options, message):
    cfg = Config.fromfile(config)
    cfg.model.backbone.in_channels = channels
    cfg.model.data_preprocessor.update(options)
    with pytest.raises(ValueError, match=message) as error:
        check_backbone(cfg)
    assert "\n" not in str(error.value)
    cfg.model.data_preprocessor.update(mean=[1.5], std=[1.0])
    check_backbone(cfg)
    cfg.model.data_preprocessor.update(mean=None, std=None)
    cfg.data_preprocessor = None
    check_backbone(cfg)


@pytest.mark.parametrize("split, other", [("train", "test"), ("test", "train")])
def test_normalize_step_of_a_single_split_is_checked(split, other):
    cfg = Config.fromfile(SHAPES)
    cfg[f"{other}_dataloader"] = None
    check_backbone(cfg)
    step = dict(type="Normalize", mean=[1.5, 2.5], std=[2.5])
    cfg[f"{split}_dataloader"].dataset.pipeline.insert(1, step)
    with pytest.raises(ValueError, match=r"^Normalize.mean has 2 values, the backbone has in_channels=3"):
        check_backbone(cfg)


@pytest.mark.parametrize("swaps, to_rgb, order", [(True, None, "RGB"), (False, True, "RGB"), (True, True, "BGR")])
def test_normalize_step_counts_like_the_preprocessor(swaps, to_rgb, order):
    cfg = Config.fromfile(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps)
    assert normalisation(cfg) == (cfg.model.data_preprocessor.mean, cfg.model.data_preprocessor.std)
    if to_rgb:
        cfg.model.data_preprocessor.update(mean=None, std=None)
        step = dict(type="Normalize", mean=[1.5], std=[2.5], to_rgb=to_rgb)
        cfg.test_dataloader.dataset.pipeline.insert(1, step)
        assert normalisation(cfg) == ([1.5], [2.5])
    assert channel_order(cfg) == order


def test_preprocessor_beside_the_model_is_used():
    """mmengine's Runner uses it, and mmpretrain's configs have it there."""
    inside, beside = Config.fromfile(SHAPES), Config.fromfile(SHAPES)
    inside.model.data_preprocessor.size = (96, 128)
    beside.model.pop("data_preprocessor")
    beside.data_preprocessor = inside.model.data_preprocessor
    for function in (normalisation, channel_order, image_side, preprocessing_steps):
        assert function(beside) == function(inside)
    assert normalisation(beside)[0] == inside.model.data_preprocessor.mean
    assert type(build_model(beside).data_preprocessor).__name__ == "SegDataPreProcessor"
    beside.data_preprocessor.mean = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 2 values, "):
        check_backbone(beside)
    beside.data_preprocessor.mean = [1.0, 2.0, 3.0]
    beside.model.backbone.ignore_padding = True
    with pytest.raises(ValueError, match=r"^ignore_padding=True with data_preprocessor.mean="):
        check_backbone(beside)


def test_augmentation_uses_the_preprocessor_beside_the_model():
    """mmengine replaces that of the model by it, and mmseg's base configs have it for three bands."""
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.in_channels = 4
    cfg.model.data_preprocessor.update(mean=None, std=None)
    check_backbone(cfg)
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 3 values, the backbone has in_channels=4"):
        check_backbone(cfg, tta=True)
    check_backbone(Config.fromfile(FOUR_BANDS), tta=True)


def test_ignore_padding_takes_the_mean_of_the_step_that_normalises():
    cfg = Config.fromfile(SHAPES)
    cfg.model.backbone.ignore_padding = True
    cfg.model.data_preprocessor.update(mean=None, std=None)
    step = dict(type="Normalize", mean=[1.5], std=[2.5])
    for split in ("train", "test"):
        cfg[f"{split}_dataloader"].dataset.pipeline.insert(1, dict(step))
    check_backbone(cfg)
    cfg.train_dataloader.dataset.pipeline[1]["mean"] = [2.0]
    with pytest.raises(ValueError, match=r"with train Normalize.mean=\[2.0\]"):
        check_backbone(cfg)


@pytest.mark.parametrize(
    "path, options, message",
    [
        (MASK_RCNN, {"mean": [0, 0, 0]}, r"mean=\[0, 0, 0\]: pixels of that value become zero"),
        (SHAPES, {"mean": [128.0, 127, 1]}, "give a mean that is not a whole number"),
        (SHAPES, {"mean": None}, "give a mean that is not a whole number"),
        (MASK_RCNN, {"pad_value": 114}, "pad_value=114 in the data_preprocessor: must be 0"),
        (SHAPES, {"pad_val": 1}, "pad_val=1 in the data_preprocessor: must be 0"),
        (
            MASK_RCNN,
            {"batch_augments": [dict(type="BatchFixedSizePad", size=(64, 64), img_pad_value=3)]},
            "img_pad_value=3 in the data_preprocessor: must be 0",
        ),
    ],
)
def test_ignore_padding_raises_if_padding_looks_like_pixels(path, options, message):
    cfg = Config.fromfile(path)
    cfg.model.backbone.ignore_padding = True
    check_backbone(cfg)
    cfg.model.data_preprocessor.update(options)
    with pytest.raises(ValueError, match=message):
        check_backbone(cfg)
    cfg.model.backbone.ignore_padding = False
    check_backbone(cfg)
