"""`with_cp="bands"` gives the gradients of the whole image to rounding, in bounded memory."""

import os
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.devices import need_autocast, on_each_device
from helpers.golden import fill, image
from helpers.gradients import errors, worst_error
from helpers.layer_changes import CHANGES
from helpers.small_models import TRUNK
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xcit_mm import TimmPyramid, XCiT
from xcit_mm.models import Trunk, by_parts, large, large_training
from xcit_mm.utils.compat import TORCH

BN = dict(norm_cfg=dict(type="BN"), norm_eval=True)
SMALL = dict(arch=TRUNK, out_indices=(0, 1, 3))
N12 = dict(arch="n12", out_indices=None)


@pytest.fixture
def cut(monkeypatch):
    """Sets the least rows of a band, which then has as many tokens, and stores tokens in files."""

    def set_rows(rows: int, in_files: bool) -> None:
        monkeypatch.setattr(large, "MIN_ROWS", rows)
        monkeypatch.setattr(large_training, "CPU_BAND", 1)
        monkeypatch.setattr(large_training, "GPU_BAND", 1)
        if in_files:
            for limit in ("CPU_BYTES", "GPU_BYTES", "HOST_BYTES"):
                monkeypatch.setattr(large_training, limit, 0)

    set_rows(8, False)
    return set_rows


def build(with_cp: Any = "bands", network: type = Trunk, **options) -> Any:
    """Build a trunk in training mode, with the parameters of the golden values."""
    return fill(network(**{**SMALL, **BN, **options}, with_cp=with_cp)).train()


def loss_of(maps: tuple[Tensor, ...]) -> Tensor:
    """Return a loss that tells all values of the maps apart."""
    chance = torch.Generator().manual_seed(2)
    weights = [torch.randn(m.shape, generator=chance, dtype=torch.float64).to(m) for m in maps]
    return sum((m * weight).sum() for m, weight in zip(maps, weights, strict=True))


def step(model: nn.Module, images: Tensor) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """Return the maps of images, and the gradients of their loss."""
    images = images.clone().requires_grad_()
    torch.manual_seed(1)  # of drop path
    maps = model(images)
    loss_of(maps).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [m.detach() for m in maps], {**gradients, "image": images.grad}


# The rows of tokens are 18, 10 and 9, of bands of 1, 8 and 99 rows.
@pytest.mark.parametrize("rows, in_files", [(1, True), (8, False), (99, False)])
@pytest.mark.parametrize(
    "options, size, batch",
    [
        (N12, (288, 112), 1),
        (dict(), (147, 77), 2),
        (dict(patch_size=8), (72, 50), 2),
        (dict(patch_embed="linear", use_pos=False, out_indices=(2,)), (150, 33), 1),
        (dict(drop_path_rate=0.4), (160, 48), 2),
    ],
)
def test_gradients_are_those_of_the_trunk_in_memory(options, size, batch, rows, in_files, cut):
    """Of images with a last band of one row, with sides that are not multiples of 32 pixels."""
    cut(rows, in_files)
    images = image(*size, batch=batch)
    maps, gradients = step(build(**options).double(), images)
    expected_maps, expected = step(build(False, **options).double(), images)
    for tap, other in zip(maps, expected_maps, strict=True):
        assert tap.shape == other.shape
        assert (tap - other).norm() < 1e-12 * other.norm()
    assert worst_error(gradients, expected) < 1e-10


@on_each_device
@pytest.mark.parametrize("has_flat_border", [False, True])
def test_in_float32_errors_are_at_most_twice_those_in_memory(has_flat_border, device, cut):
    images = image(288, 224, batch=2).to(device)
    if has_flat_border:
        images[:, :, :16] = 500
    _, exact = step(build(False, **N12).double().to(device), images)
    ours = errors(step(build(**N12).to(device), images.float())[1], exact)
    in_memory = errors(step(build(False, **N12).to(device), images.float())[1], exact)
    assert max(ours.values()) < 2 * max(in_memory.values())
    assert sum(ours.values()) < 1.5 * sum(in_memory.values())


@pytest.mark.parametrize("frozen_stages", [0, 1, 3, 4])
def test_frozen_stages_have_no_gradients_and_no_passes(frozen_stages, cut, monkeypatch):
    images = image(150, 77)
    model = build(frozen_stages=frozen_stages).double()
    _, expected = step(build(False, frozen_stages=frozen_stages).double(), images)
    assert worst_error(step(model, images)[1], expected) < 1e-10
    # Without a gradient of the image.
    backward = by_parts._ByParts.backward
    calls = []
    monkeypatch.setattr(
        by_parts._ByParts, "backward", lambda *args: calls.append(1) or backward(*args)
    )
    maps = model(images)
    if frozen_stages < 4:
        loss_of(maps).backward()
    assert maps[-1].requires_grad == (frozen_stages < 4)
    assert len(calls) == 2 * (4 - frozen_stages)  # sums and a map of each block


@pytest.mark.parametrize("taps", [(1,), (0, 1, 2)])
def test_gradients_stop_at_the_last_map_of_a_loss_and_at_weights_that_are_frozen(taps, cut):
    gradients = []
    for with_cp in ("bands", False):
        model = build(with_cp).double()
        if taps == (0, 1, 2):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.endswith(("qkv.weight", "norm3.bias")))
        maps = model(image(150, 77))
        sum(maps[number].square().sum() for number in taps).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert gradients[0]["blocks.3.gamma1"] is None
    assert worst_error(*gradients) < 1e-10


@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_in_memory(dtype, device, cut):
    """With a scaled loss, and after a call without gradients, which casts the weights."""
    need_autocast(device, dtype)
    images = image(288, 112, batch=2).to(device)
    _, exact = step(build(False, **N12).double().to(device), images)
    found = []
    for with_cp in ("bands", False):
        model = build(with_cp, **N12).to(device)
        with torch.autocast(device, dtype):
            if with_cp:
                with torch.no_grad():
                    model(images.float())
            maps = model(images.float())
        assert {tap.dtype for tap in maps} == {torch.float32}
        (64 * loss_of(maps)).backward()
        gradients = {name: p.grad / 64 for name, p in model.named_parameters()}
        found.append(errors(gradients, {name: exact[name] for name in gradients}))
    ours, in_memory = (sum(part.values()) / len(part) for part in found)
    assert ours < 1.1 * in_memory < 0.1


@on_each_device
def test_drop_path_draws_the_same_in_half_precision(device, cut):
    images = image(150, 77, batch=3).float().to(device)
    found = []
    for with_cp in ("bands", False):
        model = build(with_cp, drop_path_rate=0.4).to(device)
        torch.manual_seed(1)
        with torch.autocast(device, torch.bfloat16):
            found.append(model(images)[-1])
    assert (found[0] - found[1]).norm() < 0.03 * found[1].norm()


def test_a_graph_that_is_retained_gives_its_gradients_again(cut):
    cut(8, True)
    model = build().double()
    loss = sum(tap.square().sum() for tap in model(image(150, 77)))
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_are_gone_after_backward_and_when_none_follows(cut, tmp_path, monkeypatch):
    monkeypatch.setattr(large_training, "gettempdir", lambda: str(tmp_path))
    cut(8, True)
    model = build()
    images = image(150, 77).float()
    before = open_files()
    maps = model(images)
    assert open_files() == before + 4  # the input of each block, once
    loss = sum(tap.sum() for tap in maps)
    loss.backward()
    assert open_files() == before  # though the graph lives
    maps = model(images)
    assert open_files() == before + 4
    del maps
    assert open_files() == before
    with torch.no_grad():
        model(images)
    assert open_files() == before
    assert list(tmp_path.iterdir()) == []  # files have no names


def test_a_disk_that_lacks_space_is_named(cut, monkeypatch):
    cut(8, True)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"but 0\.0 GB are free .*: set TMPDIR to a larger one"):
        build()(image(150, 77).float())


def test_without_gradients_the_trunk_runs_in_memory(cut, monkeypatch):
    monkeypatch.setattr(large_training, "taps_by_bands", None)
    model = build(network=XCiT, **N12).eval()
    with torch.no_grad():
        assert len(model(image(64, 64).float())) == 4


class Sharded(nn.Parameter):
    """A parameter of another class, as FSDP's."""


def shard(layer: Any) -> None:
    layer.weight = Sharded(layer.weight.detach())


def flatten(layer: Any) -> None:
    """Make the weight a part of another parameter, as FSDP does."""
    del layer._parameters["weight"]
    layer.weight = nn.Parameter(torch.zeros(2, 128, 32))[0]


@pytest.mark.parametrize(
    "name, change, problem",
    [
        ("blocks.1.attn.qkv", CHANGES["hook"], "blocks.1.attn has hooks, .* set with_cp=True"),
        ("blocks.1.local_mp.bn", nn.Module.train, "cannot train .*bn: set norm_eval=True"),
        (
            "blocks.1.mlp.fc1",
            lambda layer: layer.weight.register_hook(lambda gradient: 2 * gradient),
            "blocks.1.mlp.fc1.weight, which is torch.float32, has hooks or",
        ),
        ("blocks.1.mlp.fc1", shard, r"blocks.1.mlp.fc1.weight, .*FSDP: set with_cp=True"),
        ("blocks.1.mlp.fc1", flatten, "blocks.1.mlp.fc1 has hooks"),
        ("blocks.1.mlp", nn.Module.half, "blocks.1.mlp.fc1.weight, which is torch.float16"),
    ],
)
def test_changed_layers_and_modes_are_refused(name, change, problem):
    model = build()
    change(model.get_submodule(name))
    with pytest.raises(ValueError, match=problem) as error:
        model(image(150, 77).float())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "network, options, problem",
    [
        (XCiT, dict(arch="n12", norm_eval=False), "with_cp='bands' with norm_eval=False: set norm"),
        (XCiT, dict(arch="n12", with_cp="band"), "with_cp='band': choose .* or 'bands'"),
        (TimmPyramid, dict(model="test_vit"), "with_cp='bands': choose False or True"),
    ],
)
def test_options_that_do_not_fit_are_named_when_a_model_is_built(network, options, problem):
    with torch.device("meta"), pytest.raises(ValueError, match=f"^{problem}"):
        network(**dict(with_cp="bands", norm_eval=True) | options)


@pytest.mark.parametrize("option", ["drop_rate", "attn_drop_rate"])
def test_dropout_is_named_at_the_first_image(option):
    model = XCiT("n12", with_cp="bands", **BN, **{option: 0.1})
    with pytest.raises(ValueError, match=r"train .*drop: .* no dropout"):
        model(image(64, 64).float())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_cannot_be_around_the_backbone_is_refused():
    model = build()
    images = image(64, 64).float()
    calls = [
        (lambda: torch.jit.trace(model, images), "torch.compile or trace"),
        (lambda: recompute(model, images, False), "torch.utils.checkpoint"),
        (lambda: recompute(model, images, True), "torch.utils.checkpoint"),
    ]
    if TORCH >= (2, 3):  # an older torch drops hooks of optimizers when it compiles
        compiled = torch.compile(model, backend="eager")
        calls.append((lambda: compiled(images), "torch.compile or trace"))
    for call, around in calls:
        problem = f"^with_cp='bands' does not work in {around}: set with_cp=True"
        with pytest.raises(RuntimeError, match=problem):
            call()


def recompute(model: nn.Module, images: Tensor, use_reentrant: bool) -> None:
    images = images.clone().requires_grad_()
    checkpoint(model, images, use_reentrant=use_reentrant)[0].sum().backward()
