"""Weights for RGB in models of other bands: by a rule, on request, and only where training starts."""

import pytest
import torch
from helpers.weight_files import MINI, load_in_runner, same, segmentor
from torch import Tensor

from xcit_mm import StrictLoadHook, XCiT
from xcit_mm.weights.bands import stem_key
from xcit_mm.weights.matching import CheckpointMismatch, load_pretrained


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("patch_embed", ["conv", "linear"])
@pytest.mark.parametrize("rule, bands", [("mean", 1), ("rgb-mean", 4), ("rgb-zero", 5)])
def test_first_layer_gives_the_output_of_rgb_and_only_the_stem_changes(
    patch_embed, rule, bands, tmp_path
):
    published = XCiT(MINI, patch_embed=patch_embed).double()
    torch.save(published.state_dict(), tmp_path / "rgb.pth")
    model = XCiT(MINI, in_channels=bands, patch_embed=patch_embed).double()
    load_pretrained(model, str(tmp_path / "rgb.pth"), fill_stem=rule)
    state, original = model.state_dict(), published.state_dict()
    stem = stem_key(original)
    assert same({**state, stem: original[stem]}, original)

    layers = [
        m.patch_embed.proj if patch_embed == "linear" else m.patch_embed.proj[0][0]
        for m in (model, published)
    ]
    # 'rgb-zero' ignores other bands; the other rules are equal for grey images.
    image = (
        noise(2, bands, 64, 48)
        if rule == "rgb-zero"
        else noise(2, 1, 64, 48).expand(-1, bands, -1, -1)
    )
    rgb = image[:, :3] if bands >= 3 else image.expand(-1, 3, -1, -1)
    if rule == "rgb-mean":  # the colors keep their filters
        torch.testing.assert_close(layers[0].weight[:, :3] * bands / 3, layers[1].weight)
    found = layers[0](image)
    torch.testing.assert_close(found, layers[1](rgb), rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    assert (layers[0].weight.grad != 0).all()  # all bands are learned


@pytest.mark.parametrize(
    "file_bands, bands, rule, message",
    [
        (
            3,
            4,
            None,
            r"rgb.pth does .* for 3 bands, the model has in_channels=4; to fine-tune: fill_stem='rgb-mean' .* init_cfg",
        ),
        (3, 3, "rgb-mean", None),
        (4, 4, "rgb-mean", None),
        (4, 5, "rgb-mean", "its stem is for 4 bands, the model has in_channels=5$"),
        (
            3,
            2,
            "rgb-mean",
            "fill_stem='rgb-mean' needs in_channels above 3, the model has 2: take 'mean'",
        ),
    ],
)
def test_rule_acts_only_on_request_and_on_need(file_bands, bands, rule, message, tmp_path):
    source, file = XCiT(MINI, in_channels=file_bands), str(tmp_path / "rgb.pth")
    torch.save(source.state_dict(), file)
    model = XCiT(
        MINI, in_channels=bands, init_cfg=dict(type="Pretrained", checkpoint=file, fill_stem=rule)
    )
    if message is None:
        model.init_weights()
        assert same(model.state_dict(), source.state_dict())
        return
    with pytest.raises(ValueError, match=message) as error:
        model.init_weights()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "build",
    [
        StrictLoadHook,
        lambda **rule: XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint="none", **rule)),
    ],
)
def test_unknown_rule_raises_at_once(build):
    with pytest.raises(
        ValueError, match="fill_stem='repeat': choose one of 'mean', 'rgb-mean', 'rgb-zero'"
    ):
        build(fill_stem="repeat")


def test_nan_is_rejected_before_the_mean_spreads_it(tmp_path):
    state = XCiT(MINI).state_dict()
    state["patch_embed.proj.0.0.weight"][0, 1, 0, 0] = torch.nan
    state["patch_embed.proj.0.0.weight"] = state["patch_embed.proj.0.0.weight"].to(
        torch.float8_e4m3fn
    )
    torch.save(state, tmp_path / "rgb.pth")
    with pytest.raises(
        ValueError, match=r"patch_embed.proj.0.0.weight with values that are not finite"
    ):
        load_pretrained(XCiT(MINI, in_channels=4), str(tmp_path / "rgb.pth"), fill_stem="mean")


def test_load_from_fills_a_segmentor_of_other_bands_on_request_but_not_in_testing_and_resuming():
    source, target = dict(state_dict=segmentor().state_dict()), segmentor(bands=4)
    with pytest.raises(
        CheckpointMismatch,
        match=r"for 3 bands, the model has in_channels=4; to fine-tune.*fill_stem",
    ):
        load_in_runner(target, source)
    for use in (dict(train=False), dict(resume=True)):
        with pytest.raises(
            CheckpointMismatch, match=r"for 3 bands, the model has in_channels=4; to fine-tune"
        ):
            load_in_runner(target, source, fill_stem="rgb-mean", **use)
    load_in_runner(target, source, fill_stem="rgb-zero")
    state, key = target.state_dict(), "backbone.patch_embed.proj.0.0.weight"
    assert not state[key][:, 3].any()
    assert same({**state, key: state[key][:, :3]}, source["state_dict"])
