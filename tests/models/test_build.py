"""Models from weights or from a config: the file or the config is checked first and not changed."""

import logging
import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from helpers.golden import fill
from helpers.small_models import semantic_fpn
from helpers.weight_files import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope, init_default_scope
from mmseg.structures import SegDataSample
from torch import Tensor

import xcit_mm
from xcit_mm import XCiT
from xcit_mm.models import Trunk
from xcit_mm.models.build import load_model

STEM = "patch_embed.proj.0.0.weight"


@pytest.mark.parametrize(
    "network, options",
    [
        (XCiT, {}),
        (XCiT, dict(patch_size=16, strides=(8, 16, 32), in_channels=4)),
        (Trunk, {}),
    ],
)
def test_weights_determine_class_and_options_of_the_backbone(network, options, tmp_path):
    model = fill(network(MINI, **dict(patch_size=8) | options))
    torch.save(dict(model=model.state_dict()), tmp_path / "weights.pth")
    loaded = xcit_mm.backbone(tmp_path / "weights.pth")
    assert type(loaded) is network
    image = torch.rand(1, options.get("in_channels", 3), 64, 64)
    assert all(torch.equal(*outputs) for outputs in zip(loaded(image), model(image), strict=True))


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"blocks.300.norm1.weight": torch.ones(16)}, r"it has no blocks\."),
        ({STEM: None}, r"it has no patch_embed\.proj\.0\.0\.weight"),
    ],
)
def test_a_damaged_file_is_named(tensors, message, tmp_path):
    state: dict[str, Tensor] = XCiT(MINI, norm_cfg=dict(type="BN")).state_dict()
    state |= tensors
    state = {key: value for key, value in state.items() if value is not None}
    torch.save(state, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=message) as error:
        xcit_mm.backbone(tmp_path / "file.pth")
    assert "file.pth" in str(error.value) and "\n" not in str(error.value)


def small() -> Config:
    """A small segmentor with an `init_cfg` from a file that does not exist."""
    cfg = semantic_fpn()
    cfg.model.backbone.init_cfg = dict(type="Pretrained", checkpoint="a.pth")
    return cfg


@pytest.fixture
def checkpoint(tmp_path) -> str:
    init_default_scope("mmseg")
    torch.save(dict(state_dict=MODELS.build(small().model).state_dict()), tmp_path / "whole.pth")
    return str(tmp_path / "whole.pth")


def test_preprocessing_is_that_of_training_wherever_the_config_has_it(checkpoint):
    """mmengine finds it beside the model too. The config stays."""
    beside = small()
    beside.data_preprocessor = beside.model.pop("data_preprocessor")
    before = deepcopy(beside.to_dict())
    image = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8)
    samples = [SegDataSample(metainfo=dict(img_shape=(32, 48)))]

    def preprocess(cfg: Config) -> Tensor:
        warnings.simplefilter("error", UserWarning)  # of the library, on losses
        batch = dict(inputs=[image], data_samples=samples)
        return load_model(cfg, checkpoint).data_preprocessor(batch)["inputs"]

    expected = preprocess(small())
    assert expected.mean().abs() < 2
    assert torch.equal(preprocess(beside), expected)
    with pytest.raises(FileNotFoundError):
        load_model(beside, "none.pth")
    assert beside.to_dict() == before


NAME = "xcit_nano_12_p16_224"
DETECTOR = "maskrcnn_xcit_tiny_12_p16"


@pytest.fixture
def image() -> torch.Tensor:
    return torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def downloads(tmp_path, monkeypatch) -> Path:
    """Folder of downloads, with a file of the names and shapes of a published classifier."""
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
    classifier = fill(xcit_mm.XCiTClassifier("n12", num_classes=10))
    torch.save(dict(model=classifier.state_dict()), tmp_path / f"{NAME}.pth")
    return tmp_path


def test_options_choose_taps_strides_and_frozen_stages(downloads, image):
    default = xcit_mm.backbone(NAME)
    assert type(default) is Trunk and not default.training
    assert [m.shape for m in default(image)] == [(2, 128, 4, 6)] * 4
    (last,) = xcit_mm.backbone(NAME, out_indices=(11,), frozen_stages=12)(image)
    assert torch.equal(last, default(image)[-1])
    assert not last.requires_grad
    fine = xcit_mm.backbone(downloads / f"{NAME}.pth", strides=(4, 16, 32))
    assert isinstance(fine, xcit_mm.XCiT)
    assert [m.shape[-1] for m in fine(image)] == [24, 6, 3]
    assert torch.equal(fine.blocks[0].attn.qkv.weight, default.blocks[0].attn.qkv.weight)


def test_the_backbone_of_a_trained_model_has_its_pyramid(models, tmp_path, image):
    config, checkpoint = models["seg"]
    cfg = Config.fromfile(config)
    cfg.dump(tmp_path / "mine.py")
    (tmp_path / "last_checkpoint").write_text(checkpoint)
    expected = load_model(cfg, checkpoint).backbone(image)
    maps = xcit_mm.backbone(tmp_path)(image)
    assert [m.shape[-1] for m in maps] == [24, 12, 6, 3]
    assert all(torch.equal(*pair) for pair in zip(maps, expected, strict=True))


@pytest.fixture(autouse=True)
def closed_streams_are_silent(monkeypatch) -> None:
    """Loggers of earlier tests write to closed streams."""
    monkeypatch.setattr(logging, "raiseExceptions", False)


def save_segmentor(path: Path, config: str | None, **options) -> None:
    """Save a segmentor whose backbone has some options, with the text of a config."""
    backbone = XCiT(MINI, norm_cfg=dict(type="BN"), **options).state_dict()
    state = {f"backbone.{key}": value for key, value in backbone.items()}
    state["decode_head.conv_seg.weight"] = torch.ones(1)
    torch.save(dict(state_dict=state, meta=dict(cfg=config)), path)


@pytest.mark.parametrize(
    "options",
    [
        dict(out_indices=(0, 2, 3, 5)),
        dict(out_indices=(1, 5)),  # for strides 4 and 8
        dict(strides=(16, 32)),  # levels without tensors
        dict(strides=(4, 8)),  # blocks after the last tap are not in the file
        dict(out_indices=None, strides=(4, 8, 16)),
        dict(out_indices=(0, -2), strides=(4, 8)),
        {},
    ],
)
def test_a_trained_file_is_tapped_where_its_config_says(options, tmp_path, capsys):
    file = tmp_path / "trained.pth"
    config = Config(dict(lr=0.1, model=dict(backbone=dict(arch=MINI, **options))))
    save_segmentor(file, config.pretty_text, **options)
    trained = XCiT(MINI, **options)
    loaded = xcit_mm.backbone(file)
    assert (loaded.out_indices, loaded.strides) == (trained.out_indices, trained.strides)
    assert "are tapped" not in capsys.readouterr().err
    chosen = xcit_mm.backbone(file, out_indices=(0, 2), strides=(16, 32))
    assert (chosen.out_indices, chosen.strides) == ((0, 2), (16, 32))


@pytest.mark.parametrize("config", [None, "model = dict(backbone=dict(strides=print('run')))"])
def test_a_line_names_the_taps_that_no_config_says(config, tmp_path, capsys):
    file = tmp_path / "trained.pth"
    save_segmentor(file, config)
    xcit_mm.backbone(file)
    out, err = capsys.readouterr()
    assert "blocks (1, 2, 3, 5) are tapped for strides (4, 8, 16, 32); give both" in err
    assert "run" not in out
    xcit_mm.backbone(file, out_indices=(0, 1, 2, 3))
    xcit_mm.backbone(file.rename(tmp_path / "sem_fpn_xcit_tiny_12_p16.pth"))
    assert "are tapped" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, expected",
    [
        ("sem_fpn_xcit_tiny_12_p16", (xcit_mm.XCiT, 192, 16)),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", (xcit_mm.XCiT, 384, 16)),
    ],
)
def test_without_weights_nothing_is_downloaded(name, expected, monkeypatch, tmp_path):
    """And a script keeps its default scope."""
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
    init_default_scope("mmseg")
    backbone = xcit_mm.backbone(name, pretrained=False)
    assert (type(backbone), backbone.arch.embed_dim, backbone.patch_size) == expected
    assert list(tmp_path.iterdir()) == []
    assert DefaultScope.get_current_instance().scope_name == "mmseg"


@pytest.mark.parametrize(
    "name, options, error, message",
    [
        ("xcit_smal_12_p16_224", {}, ValueError, "try xcit_small_12_p16_224, "),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", {}, ValueError, "has no checkpoint"),
        (NAME, dict(arch="t12"), ValueError, "n12/p16, .* t12/p16"),
        (DETECTOR, dict(pretrained=False, colour=1), TypeError, "^XCiT has no argument colour"),
        # A level was trained for its block: the last block alone has the stride 32.
        (DETECTOR, dict(pretrained=False, out_indices=(11,)), ValueError, "each stride of .4, 8"),
    ],
)
def test_wrong_names_and_options_are_one_line(name, options, error, message, downloads):
    with pytest.raises(error, match=message) as raised:
        xcit_mm.backbone(name, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "backbone", ["dict(type='ResNet', depth=18)", "dict(type='XCiTClassifier', arch='n12')"]
)
def test_a_config_whose_backbone_gives_no_maps_of_xcit_is_refused(backbone, tmp_path):
    config = tmp_path / "other.py"
    config.write_text(f"default_scope = 'mmdet'\nmodel = dict(type='X', backbone={backbone})")
    with pytest.raises(ValueError, match=r"other\.py has no backbone of this .* pyramid: give"):
        xcit_mm.backbone(config, pretrained=False)


def test_weights_for_a_backbone_without_memory_are_refused(tmp_path):
    save_segmentor(tmp_path / "file.pth", None)
    with torch.device("meta"), pytest.raises(ValueError, match="on the meta device"):
        xcit_mm.backbone(tmp_path / "file.pth")
