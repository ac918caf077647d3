"""Inference in chunks has the result of the whole map, and happens only where this holds."""

import copy
from collections import defaultdict

import pytest
import torch
from golden import GOLDEN, PICO, deviation, fill, image
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import Tensor, nn

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import chunks, layers, pyramid
from xcit_mm.models.chunks import in_chunks

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BN = dict(type="BN")


@pytest.fixture
def pieces(monkeypatch) -> dict[str, set[int]]:
    """The numbers of pieces into which each class of module cut its maps."""
    found = defaultdict(set)

    def spy(module: nn.Module, function, x: Tensor, **kwargs) -> Tensor:
        calls = []
        out = in_chunks(module, lambda piece: calls.append(piece) or function(piece), x, **kwargs)
        found[type(module).__name__].add(len(calls))
        return out

    for place in (layers, pyramid):
        monkeypatch.setattr(place, "in_chunks", spy)
    return found


@pytest.mark.parametrize("shape", [(1, 5000, 8), (2, 40, 60, 8)])
def test_pieces_join_to_the_whole(shape):
    layer = nn.Linear(8, 8).eval()
    x = torch.randn(shape)
    lengths = []
    with torch.inference_mode():
        out = in_chunks(layer, lambda piece: lengths.append(piece.shape[1]) or layer(piece), x)
        torch.testing.assert_close(out, layer(x))
    assert len(lengths) == 5
    assert sum(lengths) == shape[1]


# Wide maps are cut at 16 rows, 8 times the rows of the halo.
@pytest.mark.parametrize("height, width, count", [(100, 70, 7), (17, 2000, 2), (200, 9, 4)])
def test_local_patch_interaction_sees_across_chunks(height, width, count, pieces):
    layer = layers.LPI(32, BN).eval()
    nn.init.normal_(layer.bn.running_mean)
    x = torch.randn(2, height * width, 32)
    with torch.inference_mode():
        in_pieces = layer(x, height, width)
    assert pieces["LPI"] == {count}
    torch.testing.assert_close(in_pieces, layer(x, height, width).detach())


class TestGolden:
    @pytest.mark.parametrize("patch_size, cut", [(16, {"Upsample2x"}), (8, {"LPI", "Block", "Upsample2x"})])
    def test_default_chunks_give_the_authors_pyramid(self, patch_size, cut, pieces):
        model = fill(XCiT(PICO, patch_size))
        with torch.inference_mode():
            maps = model(image(224, 160, batch=2).float())
        assert {name for name, counts in pieces.items() if max(counts) > 1} == cut
        assert deviation(maps, GOLDEN / f"pyramid_pico_p{patch_size}.npz", "224x160") < 1e-4

    @pytest.mark.parametrize("patch_size", [16, 8])
    @pytest.mark.parametrize("height, width", [(128, 128), (75, 101)])
    def test_small_chunks_give_the_authors_pyramid(self, patch_size, height, width, pieces, monkeypatch):
        monkeypatch.setattr(chunks, "_CPU_POSITIONS", 16)
        model = fill(XCiT("n12", patch_size))
        with torch.inference_mode():
            maps = model(image(height, width, batch=2).float())
        assert min(pieces["Block"]) > 3
        assert min(pieces["Upsample2x"]) > 3
        assert deviation(maps, GOLDEN / f"pyramid_n12_p{patch_size}.npz", f"{height}x{width}") < 1e-4


def check_without_and_with_gradients(model: nn.Module, size: tuple[int, int] = (320, 480)) -> None:
    """Check that a pass with and without gradients gives the same maps and buffers from the same random state."""
    models = [model, copy.deepcopy(model)]
    outputs = []
    for network, grad in zip(models, (False, True), strict=True):
        torch.manual_seed(1)
        with torch.set_grad_enabled(grad):
            outputs.append(network(image(*size, batch=2).float()))
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a, b.detach())
    torch.testing.assert_close(dict(models[0].named_buffers()), dict(models[1].named_buffers()))


def build(**kwargs) -> XCiT:
    torch.manual_seed(0)
    return XCiT(TINY, 8, out_indices=(0, 1), **{"norm_cfg": BN, **kwargs})


class TestStatisticsAndRandomNumbersCoverTheWholeMap:
    """Training mode without gradients: `update_bn`, PreciseBN, Monte Carlo dropout."""

    @pytest.mark.parametrize(
        "kwargs", [{}, dict(norm_eval=True), dict(drop_rate=0.2), dict(drop_path_rate=0.5), dict(attn_drop_rate=0.2)]
    )
    def test_training(self, kwargs, pieces):
        check_without_and_with_gradients(build(**kwargs).train())
        assert pieces == {"LPI": {1}, "Block": {1}, "Upsample2x": {1}}

    def test_frozen_stages_of_a_model_in_training(self, pieces):
        check_without_and_with_gradients(build(frozen_stages=1).train())
        # The frozen block is cut without gradients, the trained block is not.
        assert {name: len(counts) for name, counts in pieces.items()} == {"LPI": 2, "Block": 2, "Upsample2x": 1}

    @pytest.mark.parametrize("part", ["Dropout", "DropPath", "BatchNorm2d"])
    def test_submodules_in_training_of_a_model_in_evaluation(self, part):
        model = build(drop_rate=0.2, drop_path_rate=0.5).eval()
        for module in model.modules():
            if type(module).__name__ == part:
                module.train()
        check_without_and_with_gradients(model)

    def test_norms_of_mmengine_are_computed_in_pieces(self, pieces):
        check_without_and_with_gradients(build(norm_cfg=dict(type=SyncBatchNorm)).eval())
        assert max(pieces["LPI"]) > 1

    @pytest.mark.parametrize("norm_cfg", [dict(BN, track_running_stats=False), dict(type="GN", num_groups=4)])
    def test_norms_without_running_statistics(self, norm_cfg, pieces):
        check_without_and_with_gradients(build(norm_cfg=norm_cfg).eval())
        assert pieces["LPI"] == {1}


@pytest.mark.parametrize("grad", [True, False])
def test_an_empty_batch(grad):
    empty = torch.empty(0, 3, 64, 96)
    with torch.set_grad_enabled(grad):
        assert [m.shape for m in build().eval()(empty)] == [(0, 32, 16, 24), (0, 32, 8, 12)]
        assert XCiTClassifier(TINY, num_classes=5).eval()(empty).shape == (0, 5)


def test_hooks_see_whole_maps_that_keep_their_values(pieces):
    model = fill(XCiT(TINY, patch_size=8, out_indices=(0, 1), strides=(8, 16), norm_cfg=BN)).eval()
    parts = {name: part for name, part in model.named_modules() if name.startswith("blocks.") and "." in name[7:]}
    x = torch.randn(1, 3, 400, 400)

    def seen() -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {name: [] for name in parts}
        handles = [
            part.register_forward_hook(lambda part, given, out, name=name: found[name].append(out))
            for name, part in parts.items()
        ]
        out = model(x)
        for handle in handles:
            handle.remove()
        return {**found, "": list(out)}

    expected = seen()
    with torch.no_grad():
        found = seen()
        unhooked = model(x)
    assert len(expected) > 20 and expected.keys() == found.keys()
    for name, maps in expected.items():
        torch.testing.assert_close(found[name], [m.detach() for m in maps], msg=name)
    torch.testing.assert_close(list(unhooked), found[""])
    assert pieces["Block"] == {1, 3}  # without hooks in pieces
