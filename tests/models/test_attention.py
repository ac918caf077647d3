"""The implementations of cross-covariance attention have the same results, derivatives and options."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmark import saved_bytes
from helpers.devices import on_each_device
from helpers.golden import GOLDEN, deviation, fill, image
from torch import Tensor

from xcit_mm import XCiT
from xcit_mm.models import XCA
from xcit_mm.models.fast import IMPLEMENTATIONS

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def attention(dim: int, num_heads: int, seed: int = 0, temperature: float = 1.0, **kwargs) -> XCA:
    torch.manual_seed(seed)
    module = XCA(dim, num_heads, **kwargs)
    torch.nn.init.normal_(module.qkv.bias)
    torch.nn.init.constant_(module.temperature, temperature)
    return module


def run(module: XCA, name: str, x: Tensor) -> Tensor:
    module.implementation = name
    return module(x)


@every_implementation
@pytest.mark.parametrize("arch, patch_size", [("n12", 16), ("t12", 8)])
def test_golden_pyramid(name, arch, patch_size):
    model = fill(XCiT(arch, patch_size, attn_implementation=name))
    with torch.inference_mode():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_{arch}_p{patch_size}.npz", "75x101") < 1e-4


class TestDerivatives:
    """Derivatives by tokens and parameters equal finite differences, or those of 'plain'."""

    @staticmethod
    def function(name: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
        module = attention(4, 2, implementation=name).double()
        x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
        names, values = zip(*module.named_parameters(), strict=True)
        return lambda x, *p: torch.func.functional_call(
            module, dict(zip(names, p, strict=True)), x
        ), (x, *values)

    @every_implementation
    def test_first_backward_and_forward(self, name):
        assert torch.autograd.gradcheck(*self.function(name), check_forward_ad=True)

    @every_implementation
    def test_second(self, name):
        assert torch.autograd.gradgradcheck(*self.function(name))


INPUTS = {
    "normal": lambda x: x,
    # The cancellation case: second moments close to those of the mean.
    "mean 100 times the deviation": lambda x: x + 100 * torch.randn(x.shape[-1]),
    "constant channels": lambda x: torch.cat((torch.ones_like(x[..., :3]), x[..., 3:]), dim=-1),
    "all-zero tokens": lambda x: x * (torch.rand(x.shape[1], 1) < 0.5),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("seed", range(4))
def test_implementations_agree(kind, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*values: int) -> int:
        return values[torch.randint(len(values), (), generator=generator)]

    heads = pick(1, 2, 4, 8)
    dim = heads * pick(4, 8, 24, 48)
    x = INPUTS[kind](
        torch.randn(pick(1, 2, 3), pick(1, 2, 7, 50, 333, 1000, 5000), dim, generator=generator)
    )
    module = attention(dim, heads, seed, temperature=pick(0.1, 1, 10, 30))
    with torch.no_grad():
        exact = run(module.double(), "plain", x.double())
        module.float()
        plain = (run(module, "plain", x) - exact).abs().max()
        scale = exact.abs().mean()
        error = (run(module, "covariance", x) - exact).abs().max()
        assert error <= max(3 * plain, 1e-4 * scale)
        assert (run(module.double(), "covariance", x.double()) - exact).abs().max() <= 1e-9 * scale


class TestPrecision:
    @on_each_device
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("name", ["auto", "covariance"])
    def test_half_precision_is_as_good_as_plain(self, name, dtype, device):
        """Outputs and gradients, by their distance from float64."""
        module = attention(64, 4).to(device)
        x = torch.randn(1, 2000, 64).to(device).requires_grad_()

        def results(name: str, **autocast: Any) -> list[Tensor]:
            with torch.autocast(device, **autocast):
                out = run(module, name, x.to(module.proj.weight.dtype)).double()
            return [out, *torch.autograd.grad(out.pow(3).sum(), (x, *module.parameters()))]

        plain, found = results("plain", dtype=dtype), results(name, dtype=dtype)
        module.double()
        for exact, a, b in zip(results("plain", enabled=False), plain, found, strict=True):
            assert (b - exact).abs().mean() <= max(
                1.5 * (a - exact).abs().mean(), 1e-3 * exact.abs().mean()
            )

    @on_each_device
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_a_million_tokens_do_not_overflow_half_precision(self, dtype, device):
        module = attention(8, 2).to(device)
        x = 30 * torch.randn(1, 1_000_000, 8, device=device)
        with torch.no_grad():
            exact = module(x)
            with torch.autocast(device, dtype):
                half = module(x).float()
        assert half.isfinite().all()
        assert (half - exact).abs().mean() < 2e-2 * exact.abs().mean()


@every_implementation
def test_dropout_acts_on_the_attention_matrix_and_on_the_output(name):
    x = torch.randn(1, 200, 16)
    dropped = attention(16, 2, attn_drop=0.999999).train()
    # Without A the values are zero and the bias of the projection remains.
    torch.testing.assert_close(run(dropped, name, x), dropped.proj.bias.expand_as(x))
    assert 0.4 < (run(attention(16, 2, proj_drop=0.5).train(), name, x) == 0).float().mean() < 0.6


def test_covariance_stores_a_quarter_of_plain_for_backward():
    module = attention(384, 8)
    x = torch.randn(2, 4200, 384, requires_grad=True)
    covariance, plain = (
        saved_bytes(module, lambda name=name: run(module, name, x))
        for name in ("covariance", "plain")
    )
    assert covariance <= 0.25 * plain


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 128), (torch.bfloat16, 192)])
def test_auto_selects_by_the_number_of_tokens(dtype, limit):
    module = attention(64, 4).to(dtype)
    with torch.no_grad():
        for tokens, expected in ((limit - 1, "plain"), (limit, "covariance")):
            x = torch.randn(2, tokens, 64).to(dtype)
            auto = run(module, "auto", x)
            equal = [
                name for name in ("plain", "covariance") if torch.equal(run(module, name, x), auto)
            ]
            assert equal == [expected]
