"""The trunk over bands of rows of an image has the results of the trunk in memory."""

import re
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.devices import on_each_device
from helpers.golden import assert_close, fill, image
from helpers.layer_changes import CHANGES
from helpers.small_models import TRUNK
from torch import Tensor, nn

from xcit_mm.models import Trunk, XCiT, large, prepare_for_inference
from xcit_mm.models.large import large_taps, pyramid_of

BN = dict(type="BN")
ALL = slice(None)


@pytest.fixture(autouse=True)
def short_bands(monkeypatch):
    """Bands of 8 rows of tokens."""
    monkeypatch.setattr(large, "CPU_TOKENS", 1)
    monkeypatch.setattr(large, "GPU_TOKENS", 1)


class Scene:
    """An image with or without gaps, whose rows are read once, but for a row of patches."""

    def __init__(self, height: int, width: int, gaps: bool = False) -> None:
        self.size = height, width
        self.pixels = image(height, width)[0].float()
        self.mask = torch.ones(height, width, dtype=torch.bool)
        if gaps:
            self.mask[: height // 2, : width // 3] = False
            self.mask[:, -width // 5 :] = False
            self.mask[height // 2 : height // 2 + 100] = False
            self.pixels[:, ~self.mask] = torch.nan
        self.gaps = gaps
        self.done = 0

    def read(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        assert self.done - 16 <= first < last <= self.size[0]
        self.done = last
        return self.pixels[:, first:last], self.mask[first:last] if self.gaps else None

    def in_memory(self, trunk: XCiT, network: type = Trunk) -> tuple[Tensor, ...]:
        """Compute the maps of the image in memory, padded to multiples of 32 pixels."""
        height, width = self.size
        device = next(trunk.parameters()).device
        images = F.pad(self.pixels[None], (0, -width % 32, 0, -height % 32)).to(device)
        with torch.inference_mode(), trunk.valid([self.mask]):
            return network.forward(trunk, images)


def build(arch: Any = TRUNK, patch_size: int = 16, **options) -> XCiT:
    if arch is TRUNK:
        options["out_indices"] = (0, 1, 3)
    return fill(XCiT(arch, patch_size, norm_cfg=BN, **options))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "arch, patch_size, size",
    [("n12", 16, (330, 120)), ("n12", 8, (190, 75)), ("t24", 8, (75, 75))],
)
def test_the_taps_are_those_in_memory(arch, patch_size, size, gaps, tmp_path):
    """Of built and prepared models, with tokens in memory and in files."""
    model = build(arch, patch_size)
    scene = Scene(*size, gaps)
    expected = scene.in_memory(model)
    in_memory = large_taps(model, scene.read, *size)
    assert_close(in_memory.crop(ALL, ALL)[0], expected)
    scene.done = 0
    in_files = large_taps(prepare_for_inference(model), scene.read, *size, tmp_path, memory=0)
    assert_close(in_files.crop(ALL, ALL)[0], expected)


@on_each_device
def test_a_trunk_without_convolutions_and_position_has_the_taps_in_memory(device):
    model = build(patch_embed="linear", use_pos=False).to(device)
    scene = Scene(300, 200, gaps=True)
    taps = large_taps(model, scene.read, *scene.size)
    assert_close(taps.crop(ALL, ALL)[0], scene.in_memory(model))


@on_each_device
def test_half_precision_is_as_exact_as_in_memory(device):
    model = build("n12").to(device)
    scene = Scene(300, 200)
    exact = scene.in_memory(model)
    with torch.autocast(device, torch.bfloat16):
        taps, _ = large_taps(model, scene.read, *scene.size).crop(ALL, ALL)
        in_memory = scene.in_memory(model)
    for tap, other, expected in zip(taps, in_memory, exact, strict=True):
        assert tap.dtype == torch.float32
        assert (tap - expected).abs().mean() < 1.1 * (other - expected).abs().mean()


@pytest.mark.parametrize("patch_size", [16, 8])
def test_windows_have_their_part_of_the_pyramid(patch_size, tmp_path):
    model = fill(XCiT(TRUNK, patch_size, out_indices=(0, 1, 2, 3), norm_cfg=BN))
    scene = Scene(300, 200, gaps=True)
    taps = large_taps(model, scene.read, *scene.size, str(tmp_path), memory=0)
    maps = scene.in_memory(model, XCiT)
    for rows, columns in [(slice(0, 128), slice(64, 192)), (slice(128, 320), slice(96, 224))]:
        expected = [
            level[..., rows.start // n : rows.stop // n, columns.start // n : columns.stop // n]
            for level, n in zip(maps, model.strides, strict=True)
        ]
        assert_close(pyramid_of(model, taps, rows, columns), expected)
    for side in (slice(16, 128), slice(0, 120), slice(192, 352), slice(64, 64), slice(None)):
        with pytest.raises(ValueError, match="give multiples of 32 from 0 to 320"):
            pyramid_of(model, taps, side, slice(0, 32))


@pytest.mark.parametrize("stop_after", [1, 3])  # passes: the stem, the second tap
def test_a_later_call_continues_after_the_last_finished_tap(stop_after, tmp_path):
    model = build()
    scene = Scene(300, 200, gaps=True)

    def stop(done: int, passes: int) -> None:
        assert passes == 5
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        large_taps(model, scene.read, *scene.size, tmp_path, 0, stop)
    if stop_after == 1:  # no tap is finished: from the first row again
        scene.done = 0
    done = []
    taps = large_taps(
        model, scene.read, *scene.size, tmp_path, 0, lambda *progress: done.append(progress)
    )
    assert done == [(number, 5) for number in range(stop_after, 6)]
    maps, valid = taps.crop(ALL, ALL)
    expected = scene.in_memory(model)
    assert_close(maps, expected)
    assert torch.equal(valid, expected[0][0, 0] != 0)
    assert {path.name for path in tmp_path.iterdir()} == {"tap0", "tap1", "tap3"}
    (tmp_path / "tap1").unlink()  # as the error of an incomplete file says
    taps = large_taps(model, scene.read, *scene.size, tmp_path, 0)
    assert_close(taps.crop(ALL, ALL)[0], expected)


class OwnTrunk(XCiT):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(2 * level for level in super().forward(x))


class OwnNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=1, keepdim=True))


def add_convolution(layer: nn.Module) -> None:
    """It reads further rows, and would see zeros at the edges of bands."""
    layer.add_module("added", nn.Conv2d(128, 128, 3, padding=1))


@pytest.mark.parametrize(
    "name, change",
    [
        ("blocks.1.attn", lambda attn: CHANGES["parametrized"](attn.proj)),
        ("blocks.1.local_mp.conv1", lambda conv: setattr(conv, "dilation", (2, 2))),
        ("blocks.1.norm1", lambda norm: setattr(norm, "__class__", OwnNorm)),
        ("patch_embed.proj.0.0", lambda conv: setattr(conv, "padding_mode", "reflect")),
        ("fpn1", add_convolution),
        ("blocks.1.mlp", add_convolution),
        ("", CHANGES["hook"]),
        ("", CHANGES["pre-hook"]),
        ("", CHANGES["wrapped"]),
    ],
)
def test_changed_and_added_layers_are_refused(name, change):
    model = build()
    change(model.get_submodule(name))
    name += ".added" * (change is add_convolution)
    problem = f"{name or 'XCiT'} has hooks, adapters"
    with pytest.raises(ValueError, match="^" + re.escape(problem)):
        large_taps(model, lambda first, last: None, 300, 200)


def test_other_networks_and_trainings_are_refused():
    own_class = build()
    own_class.__class__ = OwnTrunk
    training_norm = build()
    training_norm.patch_embed.proj[0][1].train()
    for network, problem in (
        (nn.Identity(), "Identity is not XCiT or Trunk itself"),
        (own_class, "OwnTrunk is not XCiT or Trunk itself"),
        (build().train(), "XCiT is in training mode: call eval"),
        (training_norm, "patch_embed.proj.0.1 is in training mode: call eval"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(problem)):
            large_taps(network, lambda first, last: None, 300, 200)


def test_space_that_lacks_is_named_before_the_image_is_read(tmp_path, monkeypatch):
    model = build()
    with pytest.raises(ValueError, match="give a folder"):
        large_taps(model, lambda first, last: None, 3000, 2000, memory=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**6))
    with pytest.raises(OSError, match="GB are free"):
        large_taps(model, lambda first, last: None, 3000, 2000, tmp_path, memory=10**6)
