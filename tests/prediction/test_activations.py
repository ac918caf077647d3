"""Captured activations are those that the model computes, and tools/visualize.py draws them."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from golden import fill
from mmengine.config import Config
from torch import nn

from xcit_mm import XCiT
from xcit_mm.models.backbone import Trunk
from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.prediction.activations import capture_activations, principal_components
from xcit_mm.prediction.figures import draw_activations

ARCH = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.fixture
def backbone() -> XCiT:
    return fill(XCiT(ARCH, norm_cfg=dict(type="BN"), attn_implementation="plain"))


class TestCapture:
    @pytest.mark.parametrize("replaced", [False, True])
    def test_covariance_and_temperature_give_the_attention(self, replaced, backbone):
        image, attention = torch.rand(2, 3, 64, 100), []
        if replaced:
            backbone.blocks[2].attn.qkv = nn.Sequential(backbone.blocks[2].attn.qkv, nn.Tanh())
        backbone.blocks[2].attn.attn_drop.register_forward_hook(lambda module, args, out: attention.append(out[0]))
        block = capture_activations(backbone, lambda: backbone(image), [2]).blocks[2]
        assert block.covariance.shape == (4, 8, 8) and block.covariance.abs().max() <= 1
        found = (block.temperature[:, None, None] * block.covariance).softmax(dim=-1)
        assert torch.allclose(found, attention[0], atol=1e-5)

    def test_magnitudes_are_those_of_normalised_queries_and_keys(self, backbone):
        """The plain implementation computes queries and keys by one linear layer. Channels have norm 1 over tokens."""
        projected = []
        backbone.blocks[3].attn.qkv.register_forward_hook(lambda module, args, out: projected.append(out[0].detach()))
        block = capture_activations(backbone, lambda: backbone(torch.rand(1, 3, 64, 100)), [0, 3]).blocks[3]
        q, k, _ = projected[0].double().numpy().reshape(28, 3, 32).transpose(1, 0, 2)
        for found, tokens in ((block.queries, q), (block.keys, k)):
            normalised = tokens / np.sqrt((tokens**2).sum(axis=0))
            assert found.shape == (4, 7)
            assert np.allclose(found.flatten(), np.sqrt((normalised**2).sum(axis=1)), atol=1e-5)

    def test_capturing_changes_no_output_and_leaves_no_hooks(self, backbone):
        image, after = torch.rand(1, 3, 64, 96), []
        with torch.no_grad():
            before = backbone(image)
            captured = capture_activations(backbone, lambda: after.extend(backbone(image)), backbone.out_indices)
            maps = Trunk.forward(backbone, image)
        assert all(torch.equal(*outputs) for outputs in zip(after, before, strict=True))
        assert list(captured.blocks) == [1, 2, 3, 5] and torch.equal(captured.image, image[0])
        for block, features in zip(captured.blocks.values(), maps, strict=True):
            assert torch.equal(block.features, features[0])
        with pytest.raises(ZeroDivisionError):
            capture_activations(backbone, lambda: 1 / 0, [1])
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules())

    def test_class_attention_is_the_softmax_of_queries_and_keys(self):
        """In the paper's order, with keys of all tokens, which the model does not compute."""
        model = fill(XCiTClassifier(ARCH, 8, num_classes=5, norm_cfg=dict(type="BN")))
        image, inputs, runs = torch.rand(2, 3, 64, 100), [], []
        model.blocks[0].register_forward_pre_hook(lambda module, args: runs.append(module))
        for block in model.cls_attn_blocks:
            block.attn.register_forward_pre_hook(lambda module, args: inputs.append((module, args[0])))
        captured = capture_activations(model, lambda: model(image), [5])
        assert len(inputs) == len(captured.class_attention) == 2 and len(runs) == 1
        for found, (attn, tokens) in zip(captured.class_attention, inputs, strict=True):
            q, k, _ = attn.qkv(tokens[0]).unflatten(1, (3, 4, 8)).permute(1, 2, 0, 3)  # (heads, tokens, channels)
            expected = (q[:, :1] @ k.transpose(1, 2) / 8**0.5).softmax(dim=2)[:, 0, 1:]
            assert found.shape == (4, 8, 13)
            assert torch.allclose(found.flatten(1), expected, atol=1e-6)
        assert captured.blocks[5].features.shape == (32, 8, 13)

    def test_a_missing_block_raises(self, backbone):
        with pytest.raises(ValueError, match="block 6: choose from 0 to 5"):
            capture_activations(backbone, lambda: None, [6])


class TestPrincipalComponents:
    def test_known_components_are_found(self):
        torch.manual_seed(0)
        steps = torch.linspace(0, 1, 600)
        wave, ramp = (10 * torch.pi * steps).sin(), steps - 0.5
        weights = torch.linalg.qr(torch.randn(8, 2)).Q
        features = weights[:, :1] * (5 * wave) + weights[:, 1:] * ramp + 1e-4 * torch.randn(8, 600)
        first, second, _ = principal_components(features.unflatten(1, (20, 30))).flatten(1)
        for found, truth in ((first, wave), (second, ramp)):
            assert abs(np.corrcoef(found, truth)[0, 1]) > 0.98
            assert found.min() == 0 and found.max() == 1

    def test_constant_features_are_finite(self):
        assert torch.isfinite(principal_components(torch.ones(8, 4, 4))).all()

    def test_a_ring_at_the_border_does_not_dominate_the_first_component(self):
        """The halves of the features differ, and the border differs ten times as much from both."""
        features = torch.zeros(8, 20, 30)
        features[0, :, 8:22] = 1
        features[1] = 10
        features[1, 2:-2, 2:-2] = 0
        first = principal_components(features + 1e-4 * torch.randn(8, 20, 30))[0, 2:-2, 2:-2]
        inside, outside = first[:, 6:20], torch.cat((first[:, :6], first[:, 20:]), dim=1)
        assert inside.min() > outside.max() + 0.9 or outside.min() > inside.max() + 0.9

    @pytest.mark.parametrize("sign", [1, -1])
    def test_rare_cells_are_bright(self, sign):
        features = torch.zeros(8, 20, 20)
        features[0, 8:12, 8:12] = sign
        first = principal_components(features)[0]
        assert first[9, 9] == 1 and first[3, 3] == 0


class TestFigure:
    @pytest.mark.parametrize("heads, sides", [(4, (64, 100)), (16, (100, 64)), (3, (32, 320))])
    def test_no_cells_overlap(self, heads, sides):
        arch = dict(embed_dim=16 * heads, depth=6, num_heads=heads, eta=1.0)
        model = fill(XCiTClassifier(arch, 8, num_classes=0, norm_cfg=dict(type="BN")))
        image = torch.rand(1, 3, *sides)
        figure = draw_activations(capture_activations(model, lambda: model(image), [1, 5]), image[0])
        boxes = [axes.get_position().extents for axes in figure.axes]
        assert len([axes for axes in figure.axes if axes.images]) == 1 + 4 * 2 + 2 * heads
        for number, (left, bottom, right, top) in enumerate(boxes):
            assert 0 <= left < right <= 1 and 0 <= bottom < top <= 1
            for other in boxes[:number]:
                width = min(right, other[2]) - max(left, other[0])
                height = min(top, other[3]) - max(bottom, other[1])
                assert min(width, height) < 1e-9

    @pytest.mark.parametrize("blocks", [[1], [0, 1, 2, 3, 5]])
    def test_the_heading_is_not_cut(self, blocks, backbone):
        image = torch.rand(1, 3, 64, 64)
        figure = draw_activations(capture_activations(backbone, lambda: backbone(image), blocks), image[0])
        figure.draw_without_rendering()
        heading, first = figure.texts[0].get_window_extent(), figure.axes[1].get_tightbbox()
        assert heading.x1 <= figure.bbox.x1 and heading.y1 <= figure.bbox.y1 and heading.y0 > first.y1


class TestCommand:
    @pytest.fixture
    def dino(self, tmp_path) -> str:
        """Weights of a classifier without a head."""
        classifier = XCiTClassifier(dict(embed_dim=32, depth=12, num_heads=4, eta=1.0), num_classes=0)
        torch.save(classifier.state_dict(), tmp_path / "dino.pth")
        return str(tmp_path / "dino.pth")

    @pytest.fixture
    def blue(self, tmp_path) -> str:
        cv2.imwrite(str(tmp_path / "blue.png"), np.full((64, 64, 3), (255, 0, 0), np.uint8))
        return str(tmp_path / "blue.png")

    @pytest.mark.parametrize("blocks, listed", [([], "3, 5, 7, 11"), (["--blocks", 0, 11], "0, 11")])
    def test_weights_alone(self, blocks, listed, dino, blue, call, tmp_path):
        self.check_figure(call, tmp_path / "out" / "view.png", listed, blue, dino, *blocks)

    @pytest.mark.parametrize("suffix", ["py", "json"])
    def test_a_model_of_a_config(self, suffix, models, blue, call, tmp_path):
        config, checkpoint = models["seg"]
        Config.fromfile(config).dump(tmp_path / f"config.{suffix}")
        model = tmp_path / f"config.{suffix}", checkpoint
        self.check_figure(call, tmp_path / "view.jpeg", "0, 11", blue, *model, "--blocks", 0, 11)

    def check_figure(self, call, out, blocks, *arguments):
        code, printed, _ = call("visualize", *arguments, "--out", out)
        assert code == 0 and printed.startswith(f"blocks {blocks} of ")
        figure = cv2.imread(str(out))
        assert min(figure.shape[:2]) > 500 and figure.std() > 20
        corner = figure[: figure.shape[0] // 5, : figure.shape[1] // 3].reshape(-1, 3).astype(int)
        assert (np.abs(corner - (255, 0, 0)).max(axis=1) < 20).mean() > 0.1  # the image

    def test_images_for_weights_are_normalised_as_in_training(self, dino, tmp_path):
        import visualize

        pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / "noise.png"), pixels)
        args = SimpleNamespace(image=tmp_path / "noise.png", model=dino, device="cpu", blocks=[0])
        captured, image = visualize.capture_from_weights(args)
        rgb = pixels[..., ::-1].astype(float)
        expected = (rgb - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]
        assert np.allclose(captured.image.permute(1, 2, 0), expected, atol=1e-5)
        assert np.allclose(image.permute(1, 2, 0), rgb / 255)

    def test_invalid_arguments_end_in_one_line(self, refusal, models, blue, tmp_path):
        config, weights, out = models["seg"][0], tmp_path / "other.pth", tmp_path / "a.png"
        torch.save(dict(a=torch.ones(1)), weights)
        for *arguments, message in [
            (blue, config, "--out", out, "has no checkpoint: give one after it"),
            (blue, weights, "--out", out, "other.pth"),
            (blue, config, weights, "--out", tmp_path / "a.txt", "name a .png"),
            (tmp_path / "none.png", weights, "--out", out, "none.png"),
            (blue, weights, "--device", "cuda:99", "--out", out, "--device cuda:99 cannot be used"),
        ]:
            assert message in refusal("visualize", *arguments)
        assert not out.exists()
