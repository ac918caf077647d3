"""Weights for RGB in models of other bands: by a rule, on request, and only where training begins."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import BaseLoop
from torch import Tensor, nn
from weight_files import MINI

from xcit_mm import StrictLoadHook, XCiT, XCiTClassifier
from xcit_mm.models import model_from_weights
from xcit_mm.weights.bands import stem_for_bands
from xcit_mm.weights.matching import CheckpointMismatch


@pytest.fixture(params=["conv", "linear"])
def published(request, tmp_path) -> XCiT:
    """A backbone for RGB; its file is rgb.pth."""
    model = XCiT(MINI, patch_embed=request.param).double()
    torch.save(model.state_dict(), tmp_path / "rgb.pth")
    return model


def from_file(file: Path, bands: int, rule: str | None = None, like: XCiT | None = None) -> XCiT:
    linear = like is not None and isinstance(like.patch_embed.proj, nn.Conv2d)
    init_cfg = dict(type="Pretrained", checkpoint=str(file), **(dict(fill_stem=rule) if rule else {}))
    model = XCiT(MINI, in_channels=bands, patch_embed="linear" if linear else "conv", init_cfg=init_cfg).double()
    model.init_weights()
    return model


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
def test_filters_are_those_of_the_stated_rule(rule, bands, filters):
    rgb = torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1)
    assert stem_for_bands(rgb, bands, rule).flatten().tolist() == filters


@pytest.mark.parametrize("rule, bands", [("mean", 1), ("mean", 2), ("mean", 5), ("rgb-mean", 4), ("rgb-mean", 13)])
def test_grey_looks_as_it_did(rule, bands, published, tmp_path):
    model = from_file(tmp_path / "rgb.pth", bands, rule, like=published)
    grey = noise(2, 1, 64, 48)
    found, wanted = (first_layer(one)(grey.expand(-1, n, -1, -1)) for one, n in ((model, bands), (published, 3)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bands", [4, 7])
def test_other_bands_begin_unseen_and_are_learnt(bands, published, tmp_path):
    model = from_file(tmp_path / "rgb.pth", bands, "rgb-zero", like=published)
    image = noise(2, bands, 64, 48)
    found = first_layer(model)(image)
    torch.testing.assert_close(found, first_layer(published)(image[:, :3]), rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    assert (first_layer(model).weight.grad[:, 3:] != 0).all()


def test_all_but_the_stem_is_the_file_s(published, tmp_path):
    state = from_file(tmp_path / "rgb.pth", 4, "rgb-mean", like=published).state_dict()
    wanted = published.state_dict()
    assert state.keys() == wanted.keys()
    assert [key for key in state if not torch.equal(state[key], wanted[key])] == [
        "patch_embed.proj.weight" if "patch_embed.proj.weight" in state else "patch_embed.proj.0.0.weight"
    ]


def test_a_published_name_fills_a_classifier_of_two_bands(tmp_path, monkeypatch):
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
    rgb = XCiTClassifier("n12").state_dict()
    torch.save(dict(model=rgb), tmp_path / "xcit_nano_12_p16_224.pth")
    init_cfg = dict(type="Pretrained", checkpoint="xcit://xcit_nano_12_p16_224", fill_stem="mean")
    model = XCiTClassifier("n12", in_channels=2, init_cfg=init_cfg)
    model.init_weights()
    assert torch.equal(model.head.weight, rgb["head.weight"])
    filters = model.state_dict()["patch_embed.proj.0.0.weight"]
    torch.testing.assert_close(filters.sum(1), rgb["patch_embed.proj.0.0.weight"].sum(1))


@pytest.mark.parametrize(
    "of_file, bands, rule, message",
    [
        (3, 4, None, r"rgb.pth does .* for 3 bands, the model has in_channels=4: fill_stem='rgb-mean' .* init_cfg"),
        (3, 3, None, None),
        (3, 3, "rgb-mean", None),
        (4, 4, "rgb-mean", None),
        (4, 4, None, None),
        (4, 5, "rgb-mean", "its stem is for 4 bands, the model has in_channels=5$"),
        (4, 3, "mean", "its stem is for 4 bands, the model has in_channels=3$"),
        (3, 2, "rgb-mean", "fill_stem='rgb-mean' needs in_channels above 3, the model has 2: take 'mean'"),
        (3, 1, "rgb-zero", "fill_stem='rgb-zero' needs in_channels above 3, the model has 1: take 'mean'"),
    ],
)
def test_a_rule_acts_only_where_it_is_asked_for_and_needed(of_file, bands, rule, message, tmp_path):
    source = XCiT(MINI, in_channels=of_file).double()
    torch.save(source.state_dict(), tmp_path / "rgb.pth")
    if message is None:
        state = from_file(tmp_path / "rgb.pth", bands, rule).state_dict()
        assert all(torch.equal(value, state[key]) for key, value in source.state_dict().items())
        return
    with pytest.raises(ValueError, match=message) as error:
        from_file(tmp_path / "rgb.pth", bands, rule)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("build", [StrictLoadHook, lambda **given: XCiT(MINI, init_cfg=init(**given))])
def test_a_rule_that_is_none_is_named_at_once(build):
    with pytest.raises(ValueError, match="fill_stem='repeat': choose one of 'mean', 'rgb-mean', 'rgb-zero'"):
        build(fill_stem="repeat")


def init(**given: str) -> dict:
    return dict(type="Pretrained", checkpoint="none.pth", **given)


def test_a_nan_is_not_spread_but_refused(tmp_path):
    state = XCiT(MINI).state_dict()
    state["patch_embed.proj.0.0.weight"][0, 1, 0, 0] = torch.nan
    torch.save(state, tmp_path / "rgb.pth")
    with pytest.raises(ValueError, match=r"patch_embed.proj.0.0.weight with values that are not finite"):
        from_file(tmp_path / "rgb.pth", 4, "mean")


def test_a_model_of_weights_alone_has_their_bands(tmp_path):
    torch.save(XCiT(MINI, in_channels=5).state_dict(), tmp_path / "five.pth")
    model = model_from_weights(str(tmp_path / "five.pth"), device="cpu")
    assert model(torch.zeros(1, 5, 64, 64))[0].shape == (1, 16, 16, 16)


class TestLoadFrom:
    def segmentor(self, bands: int) -> nn.Module:
        init_default_scope("mmseg")
        head = dict(type="mmseg.FCNHead", in_channels=16, in_index=0, channels=8, num_convs=1, num_classes=5)
        backbone = dict(type="XCiT", arch=MINI, in_channels=bands, norm_cfg=dict(type="BN"))
        return MODELS.build(dict(type="mmseg.EncoderDecoder", backbone=backbone, decode_head=head))

    def load(self, model: nn.Module, state: dict, train: bool = True, resume: bool = False, **hook) -> None:
        """As mmengine's Runner loads a checkpoint."""
        checkpoint = dict(state_dict=dict(state))
        loop = Mock(spec=BaseLoop) if train else None
        runner = SimpleNamespace(model=model, _train_loop=loop, _resume=resume)
        StrictLoadHook(**hook).after_load_checkpoint(runner, checkpoint)
        model.load_state_dict(checkpoint["state_dict"])

    def test_training_begins_from_a_detector_or_segmentor_for_rgb(self):
        source, target = self.segmentor(3).state_dict(), self.segmentor(4)
        self.load(target, source, fill_stem="rgb-zero")
        state = target.state_dict()
        key = "backbone.patch_embed.proj.0.0.weight"
        assert torch.equal(state[key][:, :3], source[key])
        assert not state[key][:, 3].any()
        assert all(torch.equal(state[name], value) for name, value in source.items() if name != key)

    def test_not_without_being_asked(self):
        with pytest.raises(
            CheckpointMismatch, match=r"for 3 bands, the model has in_channels=4; to fine-tune.*fill_stem"
        ):
            self.load(self.segmentor(4), self.segmentor(3).state_dict())

    @pytest.mark.parametrize("use", [dict(train=False), dict(resume=True)])
    def test_testing_and_resuming_take_what_was_trained(self, use):
        with pytest.raises(CheckpointMismatch, match=r"for 3 bands, the model has in_channels=4$"):
            self.load(self.segmentor(4), self.segmentor(3).state_dict(), fill_stem="rgb-mean", **use)
        source, target = self.segmentor(4), self.segmentor(4)
        self.load(target, source.state_dict(), fill_stem="rgb-mean", **use)
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in target.state_dict().items())
