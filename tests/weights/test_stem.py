"""Weights for RGB in models of other bands: on request, and only where training starts."""

import pytest
import torch
from helpers.weight_files import MINI, load_in_runner, same, segmentor

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained
from xcit_mm.weights.stem import stem_key


@pytest.mark.parametrize("patch_embed", ["conv", "linear"])
@pytest.mark.parametrize("bands", [1, 2, 4, 5])
def test_first_layer_gives_the_output_of_grey_and_only_the_stem_changes(
    patch_embed, bands, tmp_path
):
    published = XCiT(MINI, patch_embed=patch_embed).double()
    torch.save(published.state_dict(), tmp_path / "rgb.pth")
    model = XCiT(MINI, in_channels=bands, patch_embed=patch_embed).double()
    load_pretrained(model, str(tmp_path / "rgb.pth"), fill_stem=True)
    original = published.state_dict()
    stem = stem_key(original)
    assert same({**model.state_dict(), stem: original[stem]}, original)

    first = model.get_submodule(stem.removesuffix(".weight"))
    first_of_rgb = published.get_submodule(stem.removesuffix(".weight"))
    grey = torch.randn(2, 1, 64, 48, dtype=torch.float64)
    actual = first(grey.expand(-1, bands, -1, -1))
    expected = first_of_rgb(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    if bands > 3:  # the colors keep their filters
        torch.testing.assert_close(first.weight[:, :3] * bands / 3, first_of_rgb.weight)


def test_a_stem_for_other_bands_is_made_from_one_for_rgb_alone(tmp_path):
    file = tmp_path / "file.pth"
    torch.save(XCiT(MINI, in_channels=4).state_dict(), file)
    init_cfg = dict(type="Pretrained", checkpoint=str(file), fill_stem=True)
    model = XCiT(MINI, in_channels=5, init_cfg=init_cfg)
    with pytest.raises(ValueError, match=r"file.pth does not fit.*for 4 bands, .*in_channels=5$"):
        model.init_weights()


def test_a_segmentor_of_other_bands_is_filled_on_request():
    saved = segmentor().state_dict()
    model = segmentor(bands=4)
    load_in_runner(model, dict(state_dict=saved), fill_stem=True)
    state = model.state_dict()
    key = "backbone.patch_embed.proj.0.0.weight"
    torch.testing.assert_close(state[key][:, :3] * 4 / 3, saved[key])
    assert same(state | {key: saved[key]}, saved)


@pytest.mark.parametrize(
    "options",
    [{}, dict(fill_stem=True, train=False), dict(fill_stem=True, resume=True)],
    ids=["without a request", "testing", "resuming"],
)
def test_a_segmentor_of_other_bands_is_refused_otherwise(options):
    checkpoint = dict(state_dict=segmentor().state_dict())
    with pytest.raises(ValueError, match=r"3 bands, .*in_channels=4; .*fill_stem"):
        load_in_runner(segmentor(bands=4), checkpoint, **options)
