"""The backbone: golden values, shapes, modes, precision and memory."""

import pytest
import torch
from benchmark import saved_bytes
from helpers.devices import need_autocast, on_each_device
from helpers.golden import GOLDEN, deviation, fill, image, keys
from torch import nn

from xcit_mm import XCiT
from xcit_mm.models import matmul

# A small architecture of the tests.
TINY = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
BN = dict(type="BN")


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("arch", ["n12", "t12", "s12"])
class TestGolden:
    def test_state_dict_has_the_published_names_and_shapes(self, arch, patch_size):
        with torch.device("meta"):
            state = XCiT(arch, patch_size).state_dict()
        assert {key: list(value.shape) for key, value in state.items()} == keys(arch, patch_size)

    @on_each_device
    def test_pyramid_equals_the_authors(self, arch, patch_size, device):
        model = fill(XCiT(arch, patch_size).double()).to(device)

        file = GOLDEN / f"pyramid_{arch}_p{patch_size}.npz"
        double = [(size, torch.float64, 1e-6) for size in [(64, 96), (128, 128), (75, 101)]]
        for (height, width), dtype, tolerance in [*double, ((75, 101), torch.float32, 1e-4)]:
            images = image(height, width, batch=2).to(device, dtype)
            with torch.inference_mode():
                maps = [feature_map.cpu() for feature_map in model.to(dtype)(images)]
            assert deviation(maps, file, f"{height}x{width}") < tolerance


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("is_slow", [True, False])
def test_small_pieces_give_the_authors_pyramid(patch_size, is_slow, monkeypatch):
    monkeypatch.setattr(matmul, "CPU_POSITIONS", 16)
    monkeypatch.setattr(matmul, "has_slow_mkl", lambda: is_slow)
    model = fill(XCiT("n12", patch_size))
    with torch.no_grad():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_n12_p{patch_size}.npz", "75x101") < 1e-4


# Millions of parameters of the dense backbone, p16, from the authors' code.
@pytest.mark.parametrize(
    "arch, millions", [("t24", 11.476), ("s24", 45.506), ("m24", 80.723), ("l24", 181.228)]
)
def test_a_larger_architecture_has_the_published_number_of_parameters(arch, millions):
    with torch.device("meta"):
        model = XCiT(arch)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=6e-4)


@pytest.mark.parametrize(
    "kwargs",
    [
        *(dict(patch_size=8), dict(patch_embed="linear"), dict(use_pos=False)),
        dict(out_indices=(1, 3)),
    ],
)
def test_gradients_reach_every_parameter_and_unused_blocks_are_not_built(kwargs):
    model = XCiT(TINY, drop_rate=0.1, attn_drop_rate=0.1, **kwargs).train()
    sum(m.square().mean() for m in model(torch.randn(2, 3, 32, 47))).backward()
    parameters = model.named_parameters()
    assert [name for name, p in parameters if p.grad is None or not p.grad.any()] == []
    assert len(model.blocks) == kwargs.get("out_indices", (5,))[-1] + 1


@pytest.mark.parametrize("patch_size, strides", [(16, (8, 16, 32)), (8, (4, 32))])
def test_a_pyramid_of_some_strides_equals_the_levels_of_the_whole_pyramid(strides, patch_size):
    whole = fill(XCiT(TINY, patch_size, norm_cfg=BN))
    some = fill(XCiT(TINY, patch_size, strides=strides, norm_cfg=BN))
    image = torch.rand(1, 3, 64, 96)
    levels = dict(zip(whole.strides, whole(image), strict=True))
    torch.testing.assert_close(list(some(image)), [levels[stride] for stride in strides])


@pytest.mark.parametrize("height, width", [(20, 96), (20, 90), (90, 20), (5, 1)])
def test_maps_of_a_small_image_are_its_part_of_the_maps_of_a_padded_one(height, width):
    backbone = XCiT(TINY).eval()
    photo = torch.randn(1, 3, height, width)
    padded = torch.zeros(1, 3, max(height, 32), max(width, 32))
    padded[:, :, :height, :width] = photo
    with torch.no_grad():
        for stride, small, whole in zip(
            backbone.strides, backbone(photo), backbone(padded), strict=True
        ):
            rows = -(-height // stride) if height < 32 else None
            columns = -(-width // stride) if width < 32 else None
            assert torch.equal(small, whole[:, :, :rows, :columns])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("traced", [(64, 64), (20, 40)])
def test_a_trace_gives_maps_of_the_right_size_at_sides_above_and_below_32(traced):
    model = XCiT(TINY).eval()
    trace = torch.jit.trace(model, torch.zeros(1, 3, *traced))
    for size in [(64, 64), (75, 101), (20, 90), (90, 20), (8, 8)]:
        photo = torch.randn(1, 3, *size)
        for actual, expected in zip(trace(photo), model(photo), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@on_each_device
@pytest.mark.parametrize("strides", [None, (4, 32), (16,)])
@pytest.mark.parametrize("patch_size", [16, 8])
def test_maps_are_contiguous_and_as_output_shape_says(patch_size, strides, device):
    """mmcv's RoIAlign reads its input as contiguous: otherwise a detector would learn nothing."""
    model = XCiT(TINY, patch_size, strides=strides).to(device)
    for train in (True, False):
        maps = model.train(train)(torch.randn(2, 3, 64, 96, device=device))
        for (name, level), feature_map in zip(model.output_shape().items(), maps, strict=True):
            assert isinstance(getattr(model, name), nn.Sequential)
            assert feature_map.is_contiguous()
            size = (64 // level.stride, 96 // level.stride)
            assert feature_map.shape == (2, level.channels, *size)


def test_a_second_init_weights_keeps_trained_weights(tmp_path):
    torch.save(dict(model=XCiT(TINY, norm_cfg=BN).state_dict()), tmp_path / "weights.pth")
    init_cfg = dict(type="Pretrained", checkpoint=str(tmp_path / "weights.pth"))
    model = XCiT(TINY, norm_cfg=BN, init_cfg=init_cfg)
    model.init_weights()
    with torch.no_grad():
        model.blocks[0].gamma1.fill_(7.0)
    model.init_weights()
    assert (model.blocks[0].gamma1 == 7).all()


@pytest.mark.parametrize("frozen_stages", [-1, 0, 2])
def test_frozen_stages_do_not_move(frozen_stages):
    model = XCiT(TINY, frozen_stages=frozen_stages, norm_cfg=BN).train()
    assert [block.mlp.training for block in model.blocks] == [i >= frozen_stages for i in range(6)]
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    sum(m.square().mean() for m in model(torch.randn(2, 3, 64, 64))).backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e3).step()
    state = model.state_dict()
    frozen = ["patch_embed.", "pos_embeder."] if frozen_stages >= 0 else []
    frozen += [f"blocks.{i}." for i in range(frozen_stages)]
    stayed = {key for key in state if torch.equal(state[key], initial[key])}
    assert stayed == {key for key in state if key.startswith(tuple(frozen))}


def test_norm_eval_keeps_running_statistics():
    model = XCiT(TINY, norm_eval=True)
    initial = {key: value.clone() for key, value in model.named_buffers()}
    model(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(value, initial[key]) for key, value in model.named_buffers())
    assert model.blocks[0].training


@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_infers_as_it_trains(dtype, device):
    """The residual stream is in float32 in both, as torch's rules make it."""
    need_autocast(device, dtype)
    model = fill(XCiT("n12")).to(device)
    x = image(64, 96).float().to(device)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast(device, dtype):
            inferred = model(x)
    with torch.autocast(device, dtype):
        trained = model(x)
    assert inferred[2].dtype == trained[2].dtype == torch.float32
    tolerance = 0.015 if dtype == torch.bfloat16 else 0.01
    for level, (a, b, c) in enumerate(zip(exact, inferred, trained, strict=True)):
        error = (a - b).abs().mean()
        assert error < tolerance * a.abs().mean(), level
        assert error < 1.05 * (a - c).abs().mean(), level


@pytest.mark.parametrize("with_cp, megabytes", [(False, 171), (True, 46)])
def test_training_at_512_pixels_stores_no_hidden_map_twice(with_cp, megabytes):
    model = XCiT("n12", norm_cfg=BN, with_cp=with_cp)
    assert saved_bytes(model, lambda: model(torch.randn(1, 3, 512, 512))) < megabytes * 1e6
