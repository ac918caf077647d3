"""What tools/visualize.py shows is what the model computes."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from golden import fill
from mmengine.config import Config

from xcit_mm import XCiT
from xcit_mm.models.backbone import Trunk
from xcit_mm.models.build import model_from_weights
from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.prediction.activations import capture_activations, principal_components
from xcit_mm.prediction.figures import draw_activations

ARCH = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.fixture
def backbone() -> XCiT:
    return fill(XCiT(ARCH, norm_cfg=dict(type="BN"), attn_implementation="plain"))


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


def test_magnitudes_are_those_of_the_plain_attention_s_own_queries_and_keys(backbone):
    """It forms them by its one linear layer; every channel has norm 1 over the tokens."""
    projected = []
    backbone.blocks[3].attn.qkv.register_forward_hook(lambda module, args, out: projected.append(out[0].detach()))
    block = capture_activations(backbone, lambda: backbone(torch.rand(1, 3, 64, 100)), [0, 3]).blocks[3]
    q, k, _ = projected[0].double().numpy().reshape(28, 3, 32).transpose(1, 0, 2)
    for found, tokens in ((block.queries, q), (block.keys, k)):
        normalised = tokens / np.sqrt((tokens**2).sum(axis=0))
        assert found.shape == (4, 7)
        assert np.allclose(found.flatten(), np.sqrt((normalised**2).sum(axis=1)), atol=1e-5)
    assert not torch.allclose(block.keys, block.queries, atol=1e-2)


def test_watching_changes_nothing_and_leaves_nothing_behind(backbone):
    image, after = torch.rand(1, 3, 64, 96), []
    with torch.no_grad():
        before = backbone(image)
        view = capture_activations(backbone, lambda: after.extend(backbone(image)), backbone.out_indices)
        maps = Trunk.forward(backbone, image)
    assert all(torch.equal(one, other) for one, other in zip(after, before, strict=True))
    assert list(view.blocks) == [1, 2, 3, 5]
    for block, features in zip(view.blocks.values(), maps, strict=True):
        assert torch.equal(block.features, features[0])
    assert torch.equal(view.image, image[0])
    with pytest.raises(RuntimeError, match="out of cheese"):
        capture_activations(backbone, lambda: (_ for _ in ()).throw(RuntimeError("out of cheese")), [1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules())


def test_a_block_that_is_not_there(backbone):
    with pytest.raises(ValueError, match="block 6: choose from 0 to 5"):
        capture_activations(backbone, lambda: None, [6])


def test_class_attention_is_what_queries_and_keys_give():
    """By the paper's order, with keys of all tokens, which the model does without."""
    model = fill(XCiTClassifier(ARCH, 8, num_classes=5, norm_cfg=dict(type="BN")))
    image, inputs = torch.rand(2, 3, 64, 100), []
    for block in model.cls_attn_blocks:
        block.attn.register_forward_pre_hook(lambda module, args: inputs.append((module, args[0])))
    view = capture_activations(model, lambda: model(image), [5])
    assert len(inputs) == len(view.class_attention) == 2
    for found, (attn, tokens) in zip(view.class_attention, inputs, strict=True):
        q, k, _ = attn.qkv(tokens[0]).unflatten(1, (3, 4, 8)).permute(1, 2, 0, 3)  # (heads, tokens, channels)
        expected = (q[:, :1] @ k.transpose(1, 2) / 8**0.5).softmax(dim=2)[:, 0, 1:]
        assert found.shape == (4, 8, 13)
        assert torch.allclose(found.flatten(1), expected, atol=1e-6)
    assert view.blocks[5].features.shape == (32, 8, 13)


def test_a_classifier_runs_once():
    model = fill(XCiTClassifier(ARCH, 16, num_classes=5, norm_cfg=dict(type="BN")))
    runs = dict.fromkeys(["trunk", "class attention"], 0)

    def count(name: str):
        return lambda module, args: runs.update({name: runs[name] + 1})

    model.blocks[0].register_forward_pre_hook(count("trunk"))
    model.cls_attn_blocks[0].register_forward_pre_hook(count("class attention"))
    capture_activations(model, lambda: model(torch.rand(1, 3, 64, 64)), [0, 5])
    assert runs == {"trunk": 1, "class attention": 1}


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
    steps = torch.linspace(0, 1, 600)
    wave, ramp = (10 * torch.pi * steps).sin(), steps - 0.5
    weights = torch.linalg.qr(torch.randn(8, 2)).Q
    features = weights[:, :1] * (5 * wave) + weights[:, 1:] * ramp + 1e-4 * torch.randn(8, 600)
    first, second, _ = principal_components(features.unflatten(1, (20, 30))).flatten(1)
    for found, truth in ((first, wave), (second, ramp)):
        assert abs(np.corrcoef(found, truth)[0, 1]) > 0.98
        assert found.min() == 0 and found.max() == 1


def test_a_constant_map_has_a_picture():
    assert torch.isfinite(principal_components(torch.ones(8, 4, 4))).all()


def test_a_ring_at_the_border_does_not_take_the_first_component():
    """Half a map each of two kinds of cells, inside a border ten times as far from both."""
    features = torch.zeros(8, 20, 30)
    features[0, :, 8:22] = 1
    features[1] = 10
    features[1, 2:-2, 2:-2] = 0
    first = principal_components(features + 1e-4 * torch.randn(8, 20, 30))[0, 2:-2, 2:-2]
    inside, outside = first[:, 6:20], torch.cat((first[:, :6], first[:, 20:]), dim=1)
    assert inside.min() > outside.max() + 0.9 or outside.min() > inside.max() + 0.9


def test_what_is_rare_is_bright():
    features = torch.zeros(8, 20, 20)
    features[0, 8:12, 8:12] = 1
    for sign in (1, -1):
        first = principal_components(sign * features)[0]
        assert first[9, 9] == 1 and first[3, 3] == 0


@pytest.fixture
def dino(tmp_path):
    """A classifier's weights without a head."""
    classifier = XCiTClassifier(dict(embed_dim=32, depth=12, num_heads=4, eta=1.0), num_classes=0)
    torch.save(classifier.state_dict(), tmp_path / "dino.pth")
    return tmp_path / "dino.pth"


@pytest.mark.parametrize("suffix, written", [("png", "py"), ("jpeg", "json")])
def test_pictures(suffix, written, models, dino, call, tmp_path):
    cv2.imwrite(str(tmp_path / "blue.png"), np.full((64, 64, 3), (255, 0, 0), np.uint8))
    out = tmp_path / "out" / f"view.{suffix}"
    config, checkpoint = models["seg"]
    Config.fromfile(config).dump(tmp_path / f"config.{written}")
    for model in ((tmp_path / f"config.{written}", checkpoint), (dino,)):
        code, printed, _ = call("visualize", tmp_path / "blue.png", *model, "--out", out, "--blocks", 0, 11)
        assert code == 0
        assert "blocks 0, 11" in printed
        picture = cv2.imread(str(out))
        assert min(picture.shape[:2]) > 500 and picture.std() > 20
        corner = picture[: picture.shape[0] // 5, : picture.shape[1] // 3].reshape(-1, 3).astype(int)
        assert (np.abs(corner - (255, 0, 0)).max(axis=1) < 20).mean() > 0.3
        out.unlink()


@pytest.mark.parametrize("heads, sides", [(4, (64, 100)), (16, (100, 64)), (3, (32, 320))])
def test_nothing_lies_over_anything_else(heads, sides):
    arch = dict(embed_dim=16 * heads, depth=6, num_heads=heads, eta=1.0)
    model = fill(XCiTClassifier(arch, 8, num_classes=0, norm_cfg=dict(type="BN")))
    image = torch.rand(1, 3, *sides)
    figure = draw_activations(capture_activations(model, lambda: model(image), [1, 5]), image[0])
    boxes = [axes.get_position().extents for axes in figure.axes]
    assert len([axes for axes in figure.axes if axes.images]) == 1 + 4 * 2 + 2 * heads
    for number, (left, bottom, right, top) in enumerate(boxes):
        assert 0 <= left < right <= 1 and 0 <= bottom < top <= 1
        for other in boxes[:number]:
            wide = min(right, other[2]) - max(left, other[0])
            high = min(top, other[3]) - max(bottom, other[1])
            assert min(wide, high) < 1e-9


@pytest.mark.parametrize("blocks", [[1], [1, 3], [0, 1, 2, 3, 5]])
def test_the_heading_is_whole(blocks, backbone):
    image = torch.rand(1, 3, 64, 64)
    figure = draw_activations(capture_activations(backbone, lambda: backbone(image), blocks), image[0])
    figure.draw_without_rendering()
    heading, first = figure.texts[0].get_window_extent(), figure.axes[1].get_tightbbox()
    assert heading.x1 <= figure.bbox.x1 and heading.y1 <= figure.bbox.y1 and heading.y0 > first.y1


def test_a_classifier_is_shown_where_a_detector_would_tap_it(dino, call, tmp_path):
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((40, 40, 3), 99, np.uint8))
    code, printed, _ = call("visualize", tmp_path / "grey.png", dino, "--out", tmp_path / "view.png")
    assert code == 0 and printed.startswith("blocks 3, 5, 7, 11 of ")


def test_weights_see_the_image_normalised_as_in_training(dino, tmp_path):
    """RGB, less ImageNet's mean and over its standard deviation."""
    import visualize

    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "noise.png"), pixels)
    args = SimpleNamespace(image=tmp_path / "noise.png", model=str(dino), device="cpu", blocks=[0])
    found, picture = visualize.capture_from_weights(args)
    rgb = pixels[..., ::-1].astype(float)
    expected = (rgb - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]
    assert np.allclose(found.image.permute(1, 2, 0), expected, atol=1e-5)
    assert np.allclose(picture.permute(1, 2, 0), rgb / 255)


def test_what_cannot_begin_is_one_line(refusal, models, tmp_path, shapes):
    (config, _), image = models["seg"], next((shapes / "images" / "validation").iterdir())
    torch.save(dict(a=torch.ones(1)), tmp_path / "other.pth")
    for arguments, message in [
        ((image, config, "--out", tmp_path / "a.png"), "give a config and its checkpoint, or weights alone"),
        ((image, tmp_path / "other.pth", "--out", tmp_path / "a.png"), "other.pth"),
        ((image, config, tmp_path / "other.pth", "--out", tmp_path / "a.txt"), "name a .png"),
        ((tmp_path / "none.png", tmp_path / "other.pth", "--out", tmp_path / "a.png"), "none.png"),
        (
            (image, tmp_path / "other.pth", "--device", "cuda:99", "--out", tmp_path / "a.png"),
            "--device cuda:99 cannot be used",
        ),
    ]:
        assert message in refusal("visualize", *arguments)
        assert not (tmp_path / "a.png").exists()
