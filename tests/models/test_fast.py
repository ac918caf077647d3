"""The fast layers have the result of the plain layers, and are used only where this holds."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from golden import GOLDEN, deviation, fill, image
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from xcit_mm import XCiT, XCiTClassifier
from xcit_mm.models import fast
from xcit_mm.models.xcit import LPI, Upsample2x

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BN = dict(type="BN")


@contextmanager
def pieces() -> Iterator[Counter]:
    """Count the pieces of LPI, MLP and the transposed convolution."""
    found: Counter = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found["LPI"] += 0.5 * (func is torch.ops.aten.convolution.default and args[8] > 1)
            found["MLP"] += func is torch.ops.aten.gelu.default and args[0].dim() == 3
            found["Upsample2x"] += func is torch.ops.aten.baddbmm.default and args[2].shape[2] != args[2].shape[1]
            return func(*args, **kwargs or {})

    with Count():
        yield found


# Wide maps are cut at 16 rows, 8 times the rows of the halo.
@pytest.mark.parametrize("height, width, count", [(100, 70, 7), (17, 2000, 2), (200, 9, 4)])
def test_local_patch_interaction_sees_across_pieces(height, width, count):
    layer = LPI(32, BN).eval()
    nn.init.normal_(layer.bn.running_mean)
    x = torch.randn(2, height * width, 32)
    with torch.no_grad(), pieces() as found:
        in_pieces = layer(x, height, width)
    assert found["LPI"] == count
    torch.testing.assert_close(in_pieces, layer(x, height, width).detach())


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("height, width", [(128, 128), (75, 101)])
def test_small_pieces_give_the_authors_pyramid(patch_size, height, width, monkeypatch):
    monkeypatch.setattr(fast, "CPU_POSITIONS", 16)
    model = fill(XCiT("n12", patch_size))
    with torch.no_grad(), pieces() as found:
        maps = model(image(height, width, batch=2).float())
    assert found["MLP"] > 3 * 12 and found["Upsample2x"] > 3
    assert deviation(maps, GOLDEN / f"pyramid_n12_p{patch_size}.npz", f"{height}x{width}") < 1e-4


def check_without_and_with_gradients(model: nn.Module, size: tuple[int, int] = (320, 480)) -> Counter:
    """Check that a pass with and without gradients gives the same maps and buffers; return the pieces without."""
    models = [model, copy.deepcopy(model)]
    outputs = []
    with pieces() as found:
        for network, grad in zip(models, (True, False), strict=True):
            torch.manual_seed(1)
            found.clear()
            with torch.set_grad_enabled(grad):
                outputs.append(network(image(*size, batch=2).float()))
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a.detach(), b)
    torch.testing.assert_close(dict(models[0].named_buffers()), dict(models[1].named_buffers()))
    return found


def build(**kwargs) -> XCiT:
    torch.manual_seed(0)
    return XCiT(TINY, 8, out_indices=(0, 1), **{"norm_cfg": BN, **kwargs})


class TestStatisticsAndRandomNumbersCoverTheWholeMap:
    """Training mode without gradients: `update_bn`, PreciseBN, Monte Carlo dropout."""

    @pytest.mark.parametrize(
        "kwargs", [{}, dict(norm_eval=True), dict(drop_rate=0.2), dict(drop_path_rate=0.5), dict(attn_drop_rate=0.2)]
    )
    def test_training(self, kwargs):
        found = check_without_and_with_gradients(build(**kwargs).train())
        assert (found["LPI"], found["MLP"]) == (2, 2)

    def test_frozen_blocks_of_a_model_in_training_are_computed_in_pieces(self):
        found = check_without_and_with_gradients(build(frozen_stages=1).train())
        assert found["LPI"] > 2 and found["MLP"] > 2

    @pytest.mark.parametrize("part", ["Dropout", "DropPath", "BatchNorm2d"])
    def test_submodules_in_training_of_a_model_in_evaluation(self, part):
        model = build(drop_rate=0.2, drop_path_rate=0.5).eval()
        for module in model.modules():
            if type(module).__name__ == part:
                module.train()
        check_without_and_with_gradients(model)

    def test_norms_of_mmengine_are_computed_in_pieces(self):
        assert check_without_and_with_gradients(build(norm_cfg=dict(type=SyncBatchNorm)).eval())["LPI"] > 2

    @pytest.mark.parametrize("norm_cfg", [dict(BN, track_running_stats=False), dict(type="GN", num_groups=4)])
    def test_norms_without_running_statistics(self, norm_cfg):
        assert check_without_and_with_gradients(build(norm_cfg=norm_cfg).eval())["LPI"] == 2


@pytest.mark.parametrize("grad", [True, False])
def test_an_empty_batch(grad):
    empty = torch.empty(0, 3, 64, 96)
    with torch.set_grad_enabled(grad):
        assert [m.shape for m in build().eval()(empty)] == [(0, 32, 16, 24), (0, 32, 8, 12)]
        assert XCiTClassifier(TINY, num_classes=5).eval()(empty).shape == (0, 5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_upsampling_is_a_transposed_convolution(memory_format):
    layer = Upsample2x(8).to(memory_format=memory_format)
    x = torch.randn(2, 8, 70, 90).to(memory_format=memory_format)
    expected = nn.ConvTranspose2d.forward(layer, x)
    torch.testing.assert_close(layer(x), expected)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
        layer.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(layer(x), expected)


def test_hooks_see_whole_maps_that_keep_their_values():
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
        with pieces() as count:
            unhooked = model(x)
    assert len(expected) > 20 and expected.keys() == found.keys()
    for name, maps in expected.items():
        torch.testing.assert_close(found[name], [m.detach() for m in maps], msg=name)
    torch.testing.assert_close(list(unhooked), found[""])
    assert count["MLP"] > 2


@pytest.mark.parametrize("grad", [True, False])
def test_a_traced_model_takes_other_sizes(grad):
    model = fill(XCiT(TINY, out_indices=(0, 1), strides=(4, 32), norm_cfg=BN))
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, image(64, 96).float())
        for found, expected in zip(traced(image(320, 352).float()), model(image(320, 352).float()), strict=True):
            torch.testing.assert_close(found, expected)
