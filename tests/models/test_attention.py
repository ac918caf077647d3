"""The implementations of the attention have the same results, derivatives and options."""

from typing import Any

import pytest
import torch
from helpers.devices import need_autocast, on_each_device
from torch import Tensor

from xcit_mm.models import XCA

# 'auto' selects from these.
each_implementation = pytest.mark.parametrize("name", ["plain", "covariance"])


def attention(dim: int, num_heads: int, seed: int = 0, temperature: float = 1.0, **kwargs) -> XCA:
    torch.manual_seed(seed)
    module = XCA(dim, num_heads, **kwargs)
    torch.nn.init.normal_(module.qkv.bias)
    torch.nn.init.constant_(module.temperature, temperature)
    return module


def run(module: XCA, name: str, x: Tensor) -> Tensor:
    module.implementation = name
    return module(x)


@each_implementation
def test_derivatives_by_tokens_and_parameters_equal_finite_differences(name):
    module = attention(4, 2, implementation=name).double()
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), x)

    inputs = (x, *parameters)
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, inputs)


CHANGES = {
    "normal": lambda x: x,
    # The cancellation case: second moments close to those of the mean.
    "mean 100 times the deviation": lambda x: x + 100 * torch.randn(x.shape[-1]),
    "constant channels": lambda x: torch.cat((torch.ones_like(x[..., :3]), x[..., 3:]), dim=-1),
    "all-zero tokens": lambda x: x * (torch.rand(x.shape[1], 1) < 0.5),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(2))
def test_implementations_agree(change, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: float) -> Any:
        return choices[torch.randint(len(choices), (), generator=generator)]

    heads = pick(1, 2, 4, 8)
    dim = heads * pick(4, 8, 24, 48)
    batch = pick(1, 2, 3)
    tokens = pick(1, 2, 7, 50, 333, 1000, 5000)
    x = CHANGES[change](torch.randn(batch, tokens, dim, generator=generator))
    module = attention(dim, heads, seed, temperature=pick(0.1, 1, 10, 30))
    with torch.no_grad():
        exact = run(module.double(), "plain", x.double())
        in_float64 = (run(module, "covariance", x.double()) - exact).abs().max()
        module.float()
        plain = (run(module, "plain", x) - exact).abs().max()
        covariance = (run(module, "covariance", x) - exact).abs().max()
    scale = exact.abs().mean()
    assert covariance <= max(3 * plain, 1e-4 * scale)
    assert in_float64 <= 1e-9 * scale


@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_million_tokens_do_not_overflow_half_precision(dtype, device):
    need_autocast(device, dtype)
    module = attention(8, 2).to(device)
    x = 30 * torch.randn(1, 1_000_000, 8, device=device)
    with torch.no_grad():
        exact = module(x)
        with torch.autocast(device, dtype):
            half = module(x).float()
    assert half.isfinite().all()
    assert (half - exact).abs().mean() < 2e-2 * exact.abs().mean()


@each_implementation
def test_dropout_acts_on_the_attention_matrix_and_on_the_output(name):
    x = torch.randn(1, 200, 16)
    dropped = attention(16, 2, attn_drop=0.999999).train()
    # Without A the values are zero and the bias of the projection remains.
    torch.testing.assert_close(run(dropped, name, x), dropped.proj.bias.expand_as(x))
    assert 0.4 < (run(attention(16, 2, proj_drop=0.5).train(), name, x) == 0).float().mean() < 0.6
