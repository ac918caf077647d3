"""Weights for RGB in models of other bands: by a rule, on request, only where training starts."""

from pathlib import Path

import pytest
import torch
from helpers.weight_files import MINI, load_in_runner, same, segmentor

from xcit_mm import StrictLoadHook, XCiT
from xcit_mm.weights.bands import stem_key
from xcit_mm.weights.matching import CheckpointMismatch, load_pretrained


@pytest.mark.parametrize("patch_embed", ["conv", "linear"])
@pytest.mark.parametrize("rule, bands", [("mean", 1), ("rgb-mean", 4), ("rgb-zero", 5)])
def test_first_layer_gives_the_output_of_rgb_and_only_the_stem_changes(
    patch_embed, rule, bands, tmp_path
):
    published = XCiT(MINI, patch_embed=patch_embed).double()
    torch.save(published.state_dict(), tmp_path / "rgb.pth")
    model = XCiT(MINI, in_channels=bands, patch_embed=patch_embed).double()
    load_pretrained(model, str(tmp_path / "rgb.pth"), fill_stem=rule)
    original = published.state_dict()
    stem = stem_key(original)
    assert same({**model.state_dict(), stem: original[stem]}, original)

    first = model.get_submodule(stem.removesuffix(".weight"))
    first_of_rgb = published.get_submodule(stem.removesuffix(".weight"))
    image = torch.randn(2, bands, 64, 48, dtype=torch.float64)
    if rule != "rgb-zero":  # which ignores other bands; the others give the output of a grey image
        image = image[:, :1].expand(-1, bands, -1, -1)
    rgb = image[:, :3] if bands >= 3 else image.expand(-1, 3, -1, -1)
    torch.testing.assert_close(first(image), first_of_rgb(rgb), rtol=1e-12, atol=1e-12)
    if rule == "rgb-mean":  # the colors keep their filters
        torch.testing.assert_close(first.weight[:, :3] * bands / 3, first_of_rgb.weight)


def initialised_by(file: Path, bands: int, rule: str | None) -> XCiT:
    init_cfg = dict(type="Pretrained", checkpoint=str(file), fill_stem=rule)
    model = XCiT(MINI, in_channels=bands, init_cfg=init_cfg)
    model.init_weights()
    return model


@pytest.mark.parametrize(
    "bands_of_file, bands, rule, named",
    [
        (3, 4, None, "for 3 bands, .*in_channels=4; to fine-tune: fill_stem='rgb-mean'"),
        (4, 5, "rgb-mean", "for 4 bands, .*in_channels=5$"),
        (3, 2, "rgb-mean", "fill_stem='rgb-mean' needs in_channels above 3, .*'mean'"),
    ],
)
def test_other_bands_need_a_rule_and_a_file_for_rgb(bands_of_file, bands, rule, named, tmp_path):
    torch.save(XCiT(MINI, in_channels=bands_of_file).state_dict(), tmp_path / "file.pth")
    with pytest.raises(ValueError, match=f"file.pth does not fit.*{named}") as error:
        initialised_by(tmp_path / "file.pth", bands, rule)
    assert "\n" not in str(error.value)


def test_unknown_rule_raises_at_once():
    with pytest.raises(ValueError, match="fill_stem='repeat'"):
        StrictLoadHook(fill_stem="repeat")
    with pytest.raises(ValueError, match="fill_stem='repeat'"):
        XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint="none", fill_stem="repeat"))


def test_a_segmentor_of_other_bands_is_filled_on_request():
    saved = segmentor().state_dict()
    model = segmentor(bands=4)
    load_in_runner(model, dict(state_dict=saved), fill_stem="rgb-zero")
    state = model.state_dict()
    key = "backbone.patch_embed.proj.0.0.weight"
    assert not state[key][:, 3].any()
    assert same(state | {key: state[key][:, :3]}, saved)


@pytest.mark.parametrize(
    "options",
    [{}, dict(fill_stem="rgb-mean", train=False), dict(fill_stem="rgb-mean", resume=True)],
    ids=["without a rule", "testing", "resuming"],
)
def test_a_segmentor_of_other_bands_is_refused_otherwise(options):
    checkpoint = dict(state_dict=segmentor().state_dict())
    with pytest.raises(CheckpointMismatch, match=r"3 bands, .*in_channels=4; .*fill_stem"):
        load_in_runner(segmentor(bands=4), checkpoint, **options)
