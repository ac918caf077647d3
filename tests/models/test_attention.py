"""The forms of cross-covariance attention are one function."""

import pytest
import torch
from benchmark import saved_bytes
from golden import GOLDEN, deviation, fill, image
from torch import Tensor

from xcit_mm import XCiT
from xcit_mm.models.attention import FORMS, XCA, choose_form

FAST = ("gram", "covariance")


def attention(dim: int, num_heads: int, seed: int = 0, temperature: float = 1.0, **kwargs) -> XCA:
    torch.manual_seed(seed)
    module = XCA(dim, num_heads, **kwargs)
    torch.nn.init.normal_(module.qkv.bias)
    torch.nn.init.constant_(module.temperature, temperature)
    return module


def in_form(module: XCA, form: str, x: Tensor) -> Tensor:
    module.form = form
    return module(x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["n12_p16", "t12_p8"])
def test_golden_pyramid_in_every_form(form, name):
    arch, _, patch_size = name.partition("_p")
    model = fill(XCiT(arch, int(patch_size), attn_form=form))
    with torch.inference_mode():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_{name}.npz", "75x101") < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form):
    module = attention(8, 2, form=form).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    parameters = tuple(module.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: module(x), (x, *parameters))


INPUTS = {
    "normal": lambda x: x,
    # The cancellation case: second moments that are nearly those of the mean.
    "mean 100 times the deviation": lambda x: x + 100 * torch.randn(x.shape[-1]),
    "constant channels": lambda x: torch.cat((torch.ones_like(x[..., :3]), x[..., 3:]), dim=-1),
    "all-zero tokens": lambda x: x * (torch.rand(x.shape[1], 1) < 0.5),
    "nothing but zeros": torch.zeros_like,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("seed", range(12))
def test_forms_agree(kind, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*values: int) -> int:
        return values[torch.randint(len(values), (), generator=generator)]

    heads = pick(1, 2, 4, 8)
    dim = heads * pick(4, 8, 24, 48)
    x = INPUTS[kind](torch.randn(pick(1, 2, 3), pick(1, 2, 7, 50, 333, 1000, 5000), dim, generator=generator))
    module = attention(dim, heads, seed, temperature=pick(0.1, 1, 10, 30))
    with torch.no_grad():
        exact = in_form(module.double(), "plain", x.double())
        module.float()
        plain = (in_form(module, "plain", x) - exact).abs().max()
        scale = exact.abs().mean()
        for form in FAST:
            error = (in_form(module, form, x) - exact).abs().max()
            assert error <= max(3 * plain, 1e-4 * scale), form
            double = (in_form(module.double(), form, x.double()) - exact).abs().max()
            module.float()
            assert double <= 1e-9 * scale, form


@pytest.mark.parametrize("form", FAST)
def test_gradients_agree(form):
    module = attention(48, 4, temperature=3.0)
    x = torch.randn(2, 500, 48, requires_grad=True)
    gradients = []
    for name in ("plain", form):
        loss = (in_form(module, name, x) * torch.linspace(-1, 1, 48)).square().sum()
        gradients.append(torch.autograd.grad(loss, (x, *module.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * a.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FAST)
def test_half_precision_is_as_good_as_plain(form, dtype):
    module = attention(64, 4)
    x = torch.randn(1, 2000, 64)
    with torch.no_grad():
        exact = in_form(module, "plain", x)
        with torch.autocast("cpu", dtype):
            plain = (in_form(module, "plain", x).float() - exact).abs().mean()
            error = (in_form(module, form, x).float() - exact).abs().mean()
    assert error <= 1.5 * plain


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_a_model_cast_to_another_type_stays_there(form, dtype):
    module = attention(16, 2, form=form).to(dtype)
    assert module(torch.randn(1, 60, 16).to(dtype)).dtype == dtype


@pytest.mark.parametrize("form", FAST)
def test_a_million_tokens_do_not_overflow_half_precision(form):
    module = attention(8, 2)
    x = 30 * torch.randn(1, 1_000_000, 8)
    with torch.no_grad():
        exact = in_form(module, form, x)
        with torch.autocast("cpu", torch.float16):
            half = in_form(module, form, x).float()
    assert half.isfinite().all()
    assert (half - exact).abs().mean() < 5e-3 * exact.abs().mean()


def test_dropout_acts_on_the_attention_matrix_and_on_the_output():
    x = torch.randn(1, 200, 16)
    for form in FORMS:
        whole = attention(16, 2, attn_drop=0.999999).train()
        # Without A the values are gone and the bias of the projection is left.
        torch.testing.assert_close(in_form(whole, form, x), whole.proj.bias.expand_as(x))
        module = attention(16, 2, proj_drop=0.5).train()
        assert 0.4 < (in_form(module, form, x) == 0).float().mean() < 0.6


def test_saved_for_backward_is_a_quarter_of_plain():
    def saved(form: str) -> int:
        return saved_bytes(module, lambda: in_form(module, form, x))

    module = attention(384, 8)
    x = torch.randn(2, 4200, 384, requires_grad=True)
    assert saved("covariance") <= 0.25 * saved("plain")


def test_auto_goes_by_tokens_and_channels():
    chosen = [choose_form(torch.empty(1, tokens, 100, device="meta")) for tokens in (100, 149, 150, 249, 250, 9999)]
    assert chosen == ["plain", "plain", "gram", "gram", "covariance", "covariance"]


def test_unknown_form():
    with pytest.raises(ValueError, match=r"'fast'.*plain, gram, covariance"):
        XCA(16, 2, form="fast")
