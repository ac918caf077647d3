"""What tools/visualize.py shows is what the model computes."""

import cv2
import numpy as np
import pytest
import torch
from demo_runs import DEMO
from golden import fill
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT
from xcit_mm.models.backbone import Trunk
from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.models.factory import model_from_weights
from xcit_mm.prediction.visualization import capture_activations, principal_components

ARCH = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.fixture
def backbone() -> XCiT:
    return fill(XCiT(ARCH, norm_cfg=dict(type="BN"), attn_form="plain"))


def test_covariance_and_temperature_give_the_attention(backbone):
    image = torch.rand(2, 3, 64, 100)
    attention = []
    backbone.blocks[2].attn.attn_drop.register_forward_hook(lambda module, args, out: attention.append(out[0]))
    view = capture_activations(backbone, lambda: backbone(image), [2])
    block = view.blocks[2]
    assert block.covariance.shape == (4, 8, 8)
    assert block.covariance.abs().max() <= 1
    found = (block.temperature[:, None, None] * block.covariance).softmax(dim=-1)
    assert torch.allclose(found, attention[0], atol=1e-5)


def test_magnitudes_are_of_the_grid_and_normalised_over_tokens(backbone):
    view = capture_activations(backbone, lambda: backbone(torch.rand(1, 3, 64, 100)), [0, 3])
    for block in view.blocks.values():
        for magnitude in (block.queries, block.keys):
            assert magnitude.shape == (4, 7)
            # Every channel has norm 1 over the tokens.
            assert magnitude.square().sum() == pytest.approx(32, rel=1e-4)


def test_queries_are_queries_and_keys_keys(backbone):
    attn = backbone.blocks[0].attn
    with torch.no_grad():  # one channel of the queries stands for all, and one token of the keys
        attn.qkv.weight[1:32], attn.qkv.bias[1:32] = attn.qkv.weight[0], attn.qkv.bias[0]
    tokens = []
    attn.register_forward_pre_hook(lambda module, args: tokens.append(args[0]))
    block = capture_activations(backbone, lambda: backbone(torch.rand(1, 3, 64, 64)), [0]).blocks[0]
    q = tokens[0][0] @ attn.qkv.weight[0] + attn.qkv.bias[0]
    assert torch.allclose(block.queries.flatten(), (q / q.norm()).abs() * 32**0.5, atol=1e-5)
    assert not torch.allclose(block.keys, block.queries, atol=1e-2)


def test_watching_changes_nothing_and_leaves_nothing_behind(backbone):
    image = torch.rand(1, 3, 64, 96)
    before = backbone(image)
    view = capture_activations(backbone, lambda: backbone(image), [1])
    assert all(torch.equal(one, other[0]) for one, other in zip(view.maps, before, strict=True))
    assert torch.equal(view.image, image[0])
    with pytest.raises(RuntimeError, match="out of cheese"):
        capture_activations(backbone, lambda: (_ for _ in ()).throw(RuntimeError("out of cheese")), [1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules())


def test_a_block_that_is_not_there(backbone):
    with pytest.raises(ValueError, match="block 6: choose from 0 to 5"):
        capture_activations(backbone, lambda: None, [6])


def test_class_attention_of_a_classifier():
    model = fill(XCiTClassifier(ARCH, 8, num_classes=5, norm_cfg=dict(type="BN")))
    image = torch.rand(2, 3, 64, 100)
    view = capture_activations(model, lambda: model(image), [5])
    assert [one.shape for one in view.maps] == [(32, 8, 13)]
    assert torch.equal(view.maps[0], model.forward_features(image[:1])[1][0])
    for found, expected in zip(view.class_attention, model.attention_maps(image[:1]), strict=True):
        assert found.shape == (4, 8, 13)
        assert torch.equal(found, expected[0])


@pytest.mark.parametrize("patch_embed", ["conv", "linear"])
@pytest.mark.parametrize("kind", [XCiT, Trunk, XCiTClassifier])
def test_weights_tell_their_model(kind, patch_embed, tmp_path):
    made = fill(kind(ARCH, 8, patch_embed=patch_embed))
    path = tmp_path / "weights.pth"
    torch.save(dict(model=made.state_dict()), path)
    loaded = model_from_weights(str(path))
    assert type(loaded) is kind
    image = torch.rand(1, 3, 64, 64)
    assert all(torch.equal(one, other) for one, other in zip(loaded(image), made(image), strict=True))


@pytest.mark.parametrize("options", [dict(strides=(8, 16, 32)), dict(in_channels=4), dict(use_pos=False)])
def test_weights_tell_options_too(options, tmp_path):
    made = fill(XCiT(ARCH, norm_cfg=dict(type="BN"), **options))
    torch.save(dict(model=made.state_dict()), tmp_path / "weights.pth")
    loaded = model_from_weights(str(tmp_path / "weights.pth"))
    image = torch.rand(1, options.get("in_channels", 3), 64, 64)
    assert all(torch.equal(one, other) for one, other in zip(loaded(image), made(image), strict=True))


def test_principal_components_of_known_ones():
    torch.manual_seed(0)
    steps = torch.linspace(0, 1, 60)
    wave, ramp = (10 * torch.pi * steps).sin(), steps - 0.5
    weights = torch.linalg.qr(torch.randn(8, 2)).Q
    features = weights[:, :1] * (5 * wave) + weights[:, 1:] * ramp + 1e-4 * torch.randn(8, 60)
    first, second, _ = principal_components(features.unflatten(1, (6, 10))).flatten(1)
    for found, truth in ((first, wave), (second, ramp)):
        assert abs(np.corrcoef(found, truth)[0, 1]) > 0.98
        assert found.min() == 0 and found.max() == 1


def test_a_constant_map_has_a_picture():
    assert torch.isfinite(principal_components(torch.ones(8, 4, 4))).all()


def test_pictures(tool, tmp_path):
    config = DEMO / "fpn_xcit-n12-p16_shapes.py"
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / "model.pth")
    classifier = XCiTClassifier(dict(embed_dim=32, depth=12, num_heads=4, eta=1.0), num_classes=0)
    torch.save(classifier.state_dict(), tmp_path / "dino.pth")
    cv2.imwrite(str(tmp_path / "blue.png"), np.full((64, 64, 3), (255, 0, 0), np.uint8))
    for model in ((config, tmp_path / "model.pth"), (tmp_path / "dino.pth",)):
        out = tmp_path / "out" / "view.png"
        run = tool("visualize", tmp_path / "blue.png", *model, "--out", out, "--blocks", 0, 11)
        assert run.returncode == 0, run.stderr
        assert "blocks 0, 11" in run.stdout
        picture = cv2.imread(str(out))
        assert min(picture.shape[:2]) > 500 and picture.std() > 20
        corner = picture[: picture.shape[0] // 6, : picture.shape[1] // 6].reshape(-1, 3)
        assert (corner == (255, 0, 0)).all(axis=1).mean() > 0.3
        out.unlink()


def test_what_cannot_begin_is_one_line(refusal, tmp_path, shapes):
    config, image = DEMO / "fpn_xcit-n12-p16_shapes.py", next((shapes / "images" / "validation").iterdir())
    torch.save(dict(a=torch.ones(1)), tmp_path / "other.pth")
    for arguments, message in [
        ((image, config, "--out", tmp_path / "a.png"), "give a config and its checkpoint, or weights alone"),
        ((image, tmp_path / "other.pth", "--out", tmp_path / "a.png"), "other.pth"),
        ((image, config, tmp_path / "other.pth", "--out", tmp_path / "a.txt"), "name a .png"),
        ((tmp_path / "none.png", tmp_path / "other.pth", "--out", tmp_path / "a.png"), "none.png"),
    ]:
        assert message in refusal("visualize", *arguments)
        assert not (tmp_path / "a.png").exists()
