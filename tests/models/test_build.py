"""Models from weights or from a config: the file or the config is checked first and not changed."""

import warnings
from copy import deepcopy

import pytest
import torch
from helpers.golden import fill
from helpers.small_models import semantic_fpn
from helpers.weight_files import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, Registry, init_default_scope
from torch import Tensor

import xcit_mm
from xcit_mm import XCiT
from xcit_mm.models import Trunk
from xcit_mm.models.build import check_backbone, load_model

STEM = "patch_embed.proj.0.0.weight"
QKV = "blocks.0.attn.qkv.weight"


@pytest.mark.parametrize(
    "network, options",
    [
        (XCiT, {}),
        (XCiT, dict(patch_embed="linear")),
        (XCiT, dict(patch_size=16, strides=(8, 16, 32))),
        (XCiT, dict(in_channels=4)),
        (XCiT, dict(use_pos=False)),
        (Trunk, {}),
        (Trunk, dict(patch_embed="linear")),
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
        # Without a check first, the first two files would build a model of 300 blocks, and a model
        # of 200 GB.
        ({"blocks.300.norm1.weight": torch.ones(16)}, r"it has a block 300, but 200 tensors"),
        ({"blocks.0.norm1.weight": torch.ones(2**16)}, r"it holds patch_embed\.proj\.0\.0\.weight"),
        ({"blocks.0.attn.temperature": torch.ones(0)}, "num_heads=0"),
        ({QKV: torch.ones(48)}, r"blocks\.0\.attn\.qkv\.weight of \(48,\), not \(48, 16\)"),
        ({STEM: None}, r"stem, patch_embed\.proj\.0\.0\.weight"),
        ({"patch_embed.proj.weight": torch.ones(16, 3, 1, 64)}, "patch_size=64"),
    ],
)
def test_a_damaged_file_is_named_before_it_takes_memory(tensors, message, tmp_path):
    state: dict[str, Tensor] = XCiT(MINI, norm_cfg=dict(type="BN")).state_dict()
    state |= tensors
    state = {key: value for key, value in state.items() if value is not None}
    torch.save(state, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=message) as error:
        xcit_mm.backbone(tmp_path / "file.pth")
    assert "file.pth: " in str(error.value) and "\n" not in str(error.value)


def test_other_initialisers_are_left_to_mmengine():
    model = XCiT(MINI, init_cfg=[dict(type="Constant", layer="Linear", val=0.5)])
    model.init_weights()
    assert (model.blocks[0].mlp.fc1.weight == 0.5).all()


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


class TestModelOfConfig:
    def test_preprocessing_is_that_of_training_wherever_the_config_has_it(self, checkpoint):
        """The model's own wins; mmengine finds it beside the model too. The config stays."""
        both = small()
        both.data_preprocessor = dict(both.model.data_preprocessor, mean=[1.0, 2.0, 3.0])
        beside = small()
        beside.data_preprocessor = beside.model.pop("data_preprocessor")
        before = deepcopy(beside.to_dict())
        image = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8)

        def preprocess(cfg: Config) -> Tensor:
            return load_model(cfg, checkpoint).data_preprocessor(dict(inputs=[image]))["inputs"]

        expected = preprocess(small())
        assert expected.mean().abs() < 2
        assert torch.equal(preprocess(beside), expected)
        assert torch.equal(preprocess(both), expected)
        with pytest.raises(FileNotFoundError):
            load_model(beside, "none.pth")
        assert beside.to_dict() == before

    def test_what_the_library_says_on_losses_is_not_shown(self, checkpoint):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            load_model(small(), checkpoint)

    @pytest.mark.parametrize(
        "remove, message",
        [
            (lambda cfg: cfg.pop("default_scope"), "give the config a default_scope"),
            (lambda cfg: cfg.pop("model"), "the config has no model"),
        ],
    )
    def test_an_incomplete_config_is_named(self, remove, message):
        cfg = small()
        cfg.model.pop("_scope_", None)
        cfg.model.backbone.type = "mmseg.NoSuchThing"
        remove(cfg)
        with pytest.raises(ValueError, match=message):
            load_model(cfg, "any.pth")


def test_a_backbone_of_another_library_is_not_checked():
    """Such as mmpretrain's own XCiT."""
    library = Registry("model", parent=MODELS, scope="xcitlib")
    library.register_module(name="XCiT", module=torch.nn.Identity)
    backbone = dict(type="xcitlib.XCiT", embed_dims=192)
    check_backbone(Config(dict(default_scope="mmseg", model=dict(backbone=backbone))))


@pytest.mark.parametrize("name", ["XCiT", "mmengine.XCiT", XCiT])
def test_a_wrong_arch_is_named_before_weights_take_memory(name):
    backbone = dict(type=name, arch="s13")
    with pytest.raises(ValueError, match="s13"):
        check_backbone(Config(dict(default_scope="mmseg", model=dict(backbone=backbone))))
