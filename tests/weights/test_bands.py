"""Weights for RGB in models of other bands: by a rule, on request, and only where training starts."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from weight_files import MINI, load_in_runner, same, segmentor

from xcit_mm import StrictLoadHook, XCiT
from xcit_mm.weights.bands import stem_for_bands
from xcit_mm.weights.matching import CheckpointMismatch


@pytest.fixture(params=["conv", "linear"])
def published(request, tmp_path) -> XCiT:
    """A backbone for RGB; its file is rgb.pth."""
    model = XCiT(MINI, patch_embed=request.param).double()
    torch.save(model.state_dict(), tmp_path / "rgb.pth")
    return model


def from_file(file: Path, bands: int, rule: str | None, patch_embed: str = "conv") -> XCiT:
    init_cfg = dict(type="Pretrained", checkpoint=str(file), **(dict(fill_stem=rule) if rule else {}))
    model = XCiT(MINI, in_channels=bands, patch_embed=patch_embed, init_cfg=init_cfg).double()
    model.init_weights()
    return model


def like(published: XCiT, file: Path, bands: int, rule: str) -> XCiT:
    linear = isinstance(published.patch_embed.proj, nn.Conv2d)
    return from_file(file, bands, rule, "linear" if linear else "conv")


def first_layer(model: XCiT) -> nn.Conv2d:
    proj = model.patch_embed.proj
    return proj if isinstance(proj, nn.Conv2d) else proj[0][0]


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    "rule, bands, filters",
    [
        ("mean", 1, [9.0]),
        ("mean", 2, [4.5, 4.5]),
        ("mean", 4, [2.25, 2.25, 2.25, 2.25]),
        ("rgb-mean", 4, [0.75, 1.5, 4.5, 2.25]),
        ("rgb-mean", 6, [0.5, 1.0, 3.0, 1.5, 1.5, 1.5]),
        ("rgb-zero", 5, [1.0, 2.0, 6.0, 0.0, 0.0]),
    ],
)
def test_filters_follow_the_rule(rule, bands, filters):
    rgb = torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1)
    assert stem_for_bands(rgb, bands, rule).flatten().tolist() == filters


@pytest.mark.parametrize("rule, bands", [("mean", 1), ("mean", 5), ("rgb-mean", 4)])
def test_grey_image_keeps_its_output_and_only_the_stem_changes(rule, bands, published, tmp_path):
    model = like(published, tmp_path / "rgb.pth", bands, rule)
    grey = noise(2, 1, 64, 48)
    found, expected = (first_layer(m)(grey.expand(-1, n, -1, -1)) for m, n in ((model, bands), (published, 3)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    state, original = model.state_dict(), published.state_dict()
    stem = "patch_embed.proj.weight" if "patch_embed.proj.weight" in state else "patch_embed.proj.0.0.weight"
    assert same({**state, stem: original[stem]}, original)


def test_rgb_zero_starts_blind_to_other_bands_and_learns_them(published, tmp_path):
    model = like(published, tmp_path / "rgb.pth", 5, "rgb-zero")
    image = noise(2, 5, 64, 48)
    found = first_layer(model)(image)
    torch.testing.assert_close(found, first_layer(published)(image[:, :3]), rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    assert (first_layer(model).weight.grad[:, 3:] != 0).all()


@pytest.mark.parametrize(
    "file_bands, bands, rule, message",
    [
        (3, 4, None, r"rgb.pth does .* for 3 bands, the model has in_channels=4: fill_stem='rgb-mean' .* init_cfg"),
        (3, 3, "rgb-mean", None),
        (4, 4, "rgb-mean", None),
        (4, 5, "rgb-mean", "its stem is for 4 bands, the model has in_channels=5$"),
        (3, 2, "rgb-mean", "fill_stem='rgb-mean' needs in_channels above 3, the model has 2: take 'mean'"),
    ],
)
def test_rule_acts_only_on_request_and_on_need(file_bands, bands, rule, message, tmp_path):
    source = XCiT(MINI, in_channels=file_bands).double()
    torch.save(source.state_dict(), tmp_path / "rgb.pth")
    if message is None:
        assert same(from_file(tmp_path / "rgb.pth", bands, rule).state_dict(), source.state_dict())
        return
    with pytest.raises(ValueError, match=message) as error:
        from_file(tmp_path / "rgb.pth", bands, rule)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "build", [StrictLoadHook, lambda **rule: XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint="none", **rule))]
)
def test_unknown_rule_raises_at_once(build):
    with pytest.raises(ValueError, match="fill_stem='repeat': choose one of 'mean', 'rgb-mean', 'rgb-zero'"):
        build(fill_stem="repeat")


def test_nan_is_rejected_before_the_mean_spreads_it(tmp_path):
    state = XCiT(MINI).state_dict()
    state["patch_embed.proj.0.0.weight"][0, 1, 0, 0] = torch.nan
    torch.save(state, tmp_path / "rgb.pth")
    with pytest.raises(ValueError, match=r"patch_embed.proj.0.0.weight with values that are not finite"):
        from_file(tmp_path / "rgb.pth", 4, "mean")


def test_load_from_fills_a_segmentor_of_other_bands_only_on_request():
    source, target = dict(state_dict=segmentor().state_dict()), segmentor(bands=4)
    with pytest.raises(CheckpointMismatch, match=r"for 3 bands, the model has in_channels=4; to fine-tune.*fill_stem"):
        load_in_runner(target, source)
    load_in_runner(target, source, fill_stem="rgb-zero")
    state, key = target.state_dict(), "backbone.patch_embed.proj.0.0.weight"
    assert not state[key][:, 3].any()
    assert same({**state, key: state[key][:, :3]}, source["state_dict"])


@pytest.mark.parametrize("use", [dict(train=False), dict(resume=True)])
def test_testing_and_resuming_use_no_rule(use):
    source, target = segmentor(bands=4), segmentor(bands=4)
    with pytest.raises(CheckpointMismatch, match=r"for 3 bands, the model has in_channels=4$"):
        load_in_runner(target, dict(state_dict=segmentor().state_dict()), fill_stem="rgb-mean", **use)
    load_in_runner(target, dict(state_dict=source.state_dict()), fill_stem="rgb-mean", **use)
    assert same(target.state_dict(), source.state_dict())
