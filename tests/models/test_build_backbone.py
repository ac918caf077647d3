"""The backbone of a model or of weights by its name, for torch code."""

from pathlib import Path

import pytest
import torch
from helpers.golden import fill
from helpers.paths import CONFIGS
from mmengine.config import Config

import xcit_mm
from xcit_mm.models import Trunk
from xcit_mm.models.build import load_model

NAME = "xcit_nano_12_p16_224"


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


@pytest.mark.parametrize("is_file", [False, True])
def test_options_choose_taps_strides_and_frozen_stages(is_file, downloads, image):
    name = str(downloads / f"{NAME}.pth") if is_file else NAME
    default = xcit_mm.backbone(name)
    assert type(default) is Trunk and not default.training
    assert [m.shape for m in default(image)] == [(2, 128, 4, 6)] * 4
    (last,) = xcit_mm.backbone(name, out_indices=(11,), frozen_stages=12)(image)
    assert torch.equal(last, default(image)[-1])
    (counted_from_the_end,) = xcit_mm.backbone(name, out_indices=(-1,))(image)
    assert torch.equal(counted_from_the_end, last)
    assert not last.requires_grad
    fine = xcit_mm.backbone(name, strides=(4, 16, 32))
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


@pytest.mark.parametrize(
    "name, expected",
    [
        ("xcit_tiny_12_p8_224_dist", (Trunk, 192, 8)),
        ("xcit_small_12_cp16_dino", (Trunk, 384, 16)),
        ("sem_fpn_xcit_tiny_12_p16", (xcit_mm.XCiT, 192, 16)),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", (xcit_mm.XCiT, 384, 16)),
    ],
)
def test_without_weights_nothing_is_downloaded(name, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
    backbone = xcit_mm.backbone(name, pretrained=False)
    assert (type(backbone), backbone.arch.embed_dim, backbone.patch_size) == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, options, error, message",
    [
        ("xcit_smal_12_p16_224", {}, ValueError, "try xcit_small_12_p16_224, "),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", {}, ValueError, "has no checkpoint"),
        (NAME, dict(out_indexes=(3,)), TypeError, "out_indexes"),
        (NAME, dict(arch="t12"), ValueError, "n12/p16, .* t12/p16"),
        (str(CONFIGS / "none.py"), {}, ValueError, "none.py has no checkpoint"),
        ("none.pth", {}, FileNotFoundError, "none.pth"),
    ],
)
def test_wrong_names_and_options_are_one_line(name, options, error, message, downloads):
    with pytest.raises(error, match=message) as raised:
        xcit_mm.backbone(name, **options)
    assert "\n" not in str(raised.value)
