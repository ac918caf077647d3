"""Models from weights or from a config: what the file or the config says is checked first, and neither is changed."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from paths import CONFIGS
from torch import Tensor, nn
from weight_files import MINI

from xcit_mm.models import XCiTClassifier, backbone_from_config, build, model_from_config, model_from_weights

STEM, QKV, HEAD = "patch_embed.proj.0.0.weight", "blocks.0.attn.qkv.weight", "head.weight"


class TestModelFromWeights:
    @pytest.mark.parametrize(
        "tensors, message",
        [
            # Built first, the first two would take a model of 3001 blocks, and one of 200 GB.
            ({"blocks.3000.norm1.weight": torch.ones(16)}, r"it lacks blocks\.6\.attn\.qkv\.weight"),
            (
                {"blocks.0.norm1.weight": torch.ones(2**16)},
                r"it holds blocks\.0\.attn\.qkv\.weight of \(48, 16\), not \(196608, 65536\)",
            ),
            ({"blocks.0.attn.temperature": torch.ones(0)}, "for width 16 and 0 heads"),
            ({"blocks.0.norm1.weight": torch.ones(0)}, "for width 0 and 2 heads"),
            ({QKV: torch.ones(48)}, r"it holds blocks\.0\.attn\.qkv\.weight of \(48,\), not \(48, 16\)"),
            ({HEAD: torch.tensor(1.0)}, r"it holds head\.weight of \(\), not \(any, 16\)"),
            ({HEAD: torch.ones(3)}, r"it holds head\.weight of \(3,\), not \(any, 16\)"),
            ({STEM: None}, r"it lacks patch_embed\.proj\.0\.0\.weight"),
            ({STEM: torch.ones(2)}, r"it holds patch_embed\.proj\.0\.0\.weight of \(2,\), not \(2, any, 3, 3\)"),
            ({STEM: torch.ones(1, 3000, 3, 3)}, r"of \(1, 3000, 3, 3\), not \(2, any, 3, 3\)"),
            ({"patch_embed.proj.weight": torch.ones(16, 3, 1, 64)}, r"of \(16, 3, 1, 64\), not \(16, any, 64, 64\)"),
        ],
    )
    def test_what_a_file_claims_is_not_built_before_it_is_checked(self, tensors, message, tmp_path, monkeypatch):
        state: dict[str, Tensor] = XCiTClassifier(MINI, num_classes=3, norm_cfg=dict(type="BN")).state_dict()
        state |= tensors
        torch.save({key: value for key, value in state.items() if value is not None}, tmp_path / "file.pth")
        for kind in ("Trunk", "XCiT", "XCiTClassifier"):
            monkeypatch.delattr(build, kind)
        with pytest.raises(ValueError, match=message) as error:
            model_from_weights(str(tmp_path / "file.pth"), device="cpu")
        assert "file.pth: it" in str(error.value) and "\n" not in str(error.value)


def small() -> Config:
    """The demo's segmentor, small and without a GPU's norm; its weights would start from a file."""
    cfg = Config.fromfile(CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py")
    cfg.model.backbone.update(arch=MINI, norm_cfg=dict(type="BN"), init_cfg=dict(type="Pretrained", checkpoint="a.pth"))
    cfg.model.neck.update(in_channels=[16] * 4, out_channels=16)
    cfg.model.decode_head.update(in_channels=[16] * 4, channels=16, norm_cfg=dict(type="BN"))
    return cfg


def beside() -> Config:
    """The same, its data preprocessor beside the model, where mmengine's Runner looks too."""
    cfg = small()
    cfg.data_preprocessor = cfg.model.pop("data_preprocessor")
    return cfg


def save(cfg: Config, folder: Path) -> str:
    """A checkpoint of what mmengine's Runner builds of a config."""
    name = f"{folder.name}-{len(list(folder.iterdir()))}"
    runner = Runner(
        deepcopy(cfg.model),
        str(folder / "work"),
        data_preprocessor=deepcopy(cfg.get("data_preprocessor")),
        default_scope=cfg.default_scope,
        experiment_name=name,
        cfg=deepcopy(cfg),
    )
    torch.save(dict(state_dict=runner.model.state_dict()), folder / "whole.pth")
    return str(folder / "whole.pth")


class TestModelFromConfig:
    def test_images_are_prepared_as_in_training_wherever_the_config_says_how(self, tmp_path):
        checkpoint = save(beside(), tmp_path)
        expected, found = (model_from_config(cfg, checkpoint).data_preprocessor for cfg in (small(), beside()))
        assert type(found) is type(expected)
        image = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8)
        prepared, wanted = (one(dict(inputs=[image]))["inputs"] for one in (found, expected))
        assert torch.equal(prepared, wanted) and wanted.mean().abs() < 2

    def test_the_model_s_own_preprocessor_wins(self, tmp_path):
        cfg = small()
        cfg.data_preprocessor = dict(cfg.model.data_preprocessor, mean=[1.0, 2.0, 3.0])
        found = model_from_config(cfg, save(cfg, tmp_path)).data_preprocessor.mean
        assert found.flatten().tolist() == pytest.approx(cfg.model.data_preprocessor.mean)

    @pytest.mark.parametrize("build", [model_from_config, backbone_from_config])
    def test_the_config_stays_as_it_is(self, build: Callable[..., nn.Module], tmp_path):
        """Who trains from it afterwards starts from its init_cfg."""
        cfg, checkpoint = beside(), save(beside(), tmp_path)
        before = deepcopy(cfg.to_dict())
        build(cfg, checkpoint)
        assert cfg.to_dict() == before
        with pytest.raises(FileNotFoundError):
            build(cfg, str(tmp_path / "none.pth"))
        assert cfg.to_dict() == before

    @pytest.mark.parametrize("build", [model_from_config, backbone_from_config])
    def test_configs_that_lack_a_part_are_told_what(self, build: Callable[..., nn.Module]):
        cfg = small()
        cfg.pop("default_scope")
        cfg.model.pop("_scope_", None)
        cfg.model.backbone.type = "mmseg.NoSuchThing"
        with pytest.raises(ValueError, match="give the config a default_scope"):
            build(cfg, "any.pth")
        with pytest.raises(ValueError, match=r"^the config has no model: give the config of a whole run$"):
            build(Config(dict(default_scope="mmseg")), "any.pth")

    def test_a_model_without_a_backbone_has_none_to_take(self, tmp_path):
        cfg = Config(dict(default_scope="mmengine", model=dict(type="mmengine.BaseDataPreprocessor")))
        with pytest.raises(ValueError, match=r"^the config's model, mmengine\.BaseDataPreprocessor, has no backbone"):
            backbone_from_config(cfg, "any.pth")
        torch.save(dict(state_dict={}), tmp_path / "file.pth")
        with pytest.raises(ValueError, match=r"^the model has no backbone"):
            model_from_config(cfg, str(tmp_path / "file.pth"))
