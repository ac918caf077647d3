"""The classifier has the published logits from every file, and trains in mmpretrain."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.golden import GOLDEN, PICO, deviation, fill, image
from helpers.paths import CONFIGS
from helpers.weight_files import CLASSIFIERS, official, path_of, same
from mmcv import imwrite
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from torch import nn

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.weights.matching import match_model

TINY = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)
CONFIG = next((CONFIGS / "classification").glob("*.py"))


def load(file: Path, patch_size: int = 16, num_classes: int = 10, **options) -> XCiTClassifier:
    init_cfg = dict(type="Pretrained", checkpoint=str(file), **options)
    model = XCiTClassifier(PICO, patch_size, num_classes, init_cfg=init_cfg)
    model.init_weights()
    return model.eval()


@pytest.mark.parametrize("name", ["n12_p16", "n12_p8", "t12_p16", "t12_p8"])
def test_logits_equal_the_authors(name):
    arch, _, patch_size = name.partition("_p")
    for dtype, tolerance in [(torch.float32, 1e-4), (torch.float64, 1e-9)]:
        model = fill(XCiTClassifier(arch, int(patch_size)).to(dtype))
        with torch.inference_mode():
            logits = model(image(224, 224).to(dtype))
        assert deviation([logits], GOLDEN / f"logits_{name}.npz") < tolerance


class TestLoading:
    @pytest.mark.parametrize("source", CLASSIFIERS)
    def test_files_of_every_project_give_the_golden_logits(self, source, tmp_path):
        patch_size = 8 if "_p8" in source else 16
        with torch.inference_mode():
            logits = load(path_of(source, tmp_path), patch_size)(image(224, 224).float())
        assert deviation([logits], GOLDEN / f"logits_pico_p{patch_size}.npz") < 1e-4

    def test_dino_gives_a_descriptor(self, tmp_path):
        dino = path_of("dino-full_p16.pth", tmp_path)
        file = path_of("official-imagenet_p16.pth", tmp_path)
        classifier = load(file)
        x = image(64, 96, batch=2).float()
        with torch.inference_mode():
            descriptor = load(dino, num_classes=0)(x)
            torch.testing.assert_close(classifier.head(descriptor), classifier(x))
            # A file for classes gives the descriptor too.
            assert torch.equal(load(file, num_classes=0)(x), descriptor)
        with pytest.raises(ValueError, match=r"it has no head\.weight.*strict_heads=False"):
            load(dino)
        assert torch.equal(load(dino, strict_heads=False).norm.weight, official(16)["norm.weight"])

    def test_a_file_without_class_attention_is_rejected(self, tmp_path):
        torch.save(XCiT(PICO).state_dict(), tmp_path / "file.pth")
        with pytest.raises(ValueError, match="it has no cls_token, "):
            load(tmp_path / "file.pth")


def test_the_checkpoint_of_a_classifier_in_mmpretrain_fills_it_whole():
    model = nn.Module()
    model.backbone = XCiTClassifier(PICO, num_classes=0)
    model.head = nn.ModuleDict(dict(fc=nn.Linear(32, 5)))
    state = fill(model).state_dict()
    assert same(match_model(model, dict(state_dict=state)), state)
    del state["head.fc.bias"]
    with pytest.raises(ValueError, match=r"head\.fc\.bias"):
        match_model(model, dict(state_dict=state))


@pytest.mark.parametrize("patch_size", [16, 8])
@torch.inference_mode()
def test_attention_maps_are_the_weights_of_the_patches_that_the_logits_follow_from(patch_size):
    model = fill(XCiTClassifier(TINY, patch_size, num_classes=5).double())
    x = image(75, 101, batch=2)
    computed = []  # queries, keys and values of the blocks
    for block in model.cls_attn_blocks:
        block.attn.qkv.register_forward_hook(lambda _, args, qkv: computed.append(qkv))
    logits = model(x)
    grid = (math.ceil(75 / patch_size), math.ceil(101 / patch_size))
    cls, tokens = model.forward_features(x)
    assert tokens.shape == (2, 32, *grid)
    torch.testing.assert_close(model.head(cls), logits)
    for attention, qkv in zip(model.attention_maps(x), computed[:2], strict=True):
        q, k, _ = qkv.unflatten(2, (3, 4, 8)).unbind(2)  # (2, N, heads, 8) each
        weights = (torch.einsum("bhd,bnhd->bhn", q[:, 0], k) / 8**0.5).softmax(dim=2)
        assert attention.shape == (2, 4, *grid)
        torch.testing.assert_close(attention.flatten(2), weights[..., 1:])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_classifies_batches_and_images_of_any_size():
    model = XCiTClassifier(TINY, num_classes=5).eval()
    trace = torch.jit.trace(model, torch.zeros(1, 3, 64, 64))
    images = torch.randn(3, 3, 75, 40)
    torch.testing.assert_close(trace(images), model(images), rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter():
    model = XCiTClassifier(TINY, num_classes=5, drop_rate=0.1, attn_drop_rate=0.2).train()
    F.cross_entropy(model(torch.randn(2, 3, 64, 96)), torch.tensor([1, 2])).backward()
    parameters = model.named_parameters()
    assert [name for name, p in parameters if p.grad is None or not p.grad.any()] == []


@pytest.mark.peers
def test_config_trains_in_mmpretrain(tmp_path):
    reason = "mmpretrain is not installed: make STACK=peers test"
    pytest.importorskip("mmpretrain.registry", reason=reason)
    rng = np.random.RandomState(0)
    for split, channel, number in itertools.product(("train", "val"), (0, 2), range(8)):
        pixels = rng.randint(0, 100, (72, 80, 3), dtype=np.uint8)
        pixels[..., channel] += 120
        imwrite(pixels, str(tmp_path / "data" / split / str(channel) / f"{number}.png"))
    torch.save(dict(model=official(16)), tmp_path / "imagenet.pth")  # of 10 classes
    cfg = Config.fromfile(CONFIG)
    init_cfg = dict(checkpoint=str(tmp_path / "imagenet.pth"))
    cfg.model.backbone.merge(dict(arch=PICO, num_classes=2, init_cfg=init_cfg))
    cfg.data_preprocessor.num_classes = 2
    cfg.train_cfg.merge(dict(max_epochs=4, val_interval=4))
    data = dict(batch_size=4, num_workers=0, dataset=dict(data_root=str(tmp_path / "data")))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.merge(data)
    cfg.optim_wrapper.optimizer.lr = 5e-3
    cfg.merge_from_dict(dict(param_scheduler=[], work_dir=str(tmp_path), randomness=dict(seed=0)))
    Runner.from_cfg(cfg).train()
    cfg.load_from = str(tmp_path / "epoch_4.pth")
    assert Runner.from_cfg(cfg).test()["accuracy/top1"] == 100.0
    init_default_scope("mmengine")
