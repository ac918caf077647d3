"""The forms of cross-covariance attention are one function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmark import saved_bytes
from devices import on_each_device
from golden import GOLDEN, deviation, fill, image
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from xcit_mm import XCiT
from xcit_mm.archs import ARCHS
from xcit_mm.models.attention import FORMS, XCA

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


class TestDerivatives:
    """Of the output by tokens and parameters, against finite differences."""

    @staticmethod
    def function(form: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
        module = attention(4, 2, form=form).double()
        x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
        names, values = zip(*module.named_parameters(), strict=True)
        return lambda x, *p: torch.func.functional_call(module, dict(zip(names, p, strict=True)), x), (x, *values)

    @pytest.mark.parametrize("form", FORMS)
    def test_first_backward_and_forward(self, form):
        assert torch.autograd.gradcheck(*self.function(form), check_forward_ad=True)

    @pytest.mark.parametrize("form", FORMS)
    def test_second(self, form):
        assert torch.autograd.gradgradcheck(*self.function(form))

    @pytest.mark.parametrize("form", FAST)
    def test_forward_alone(self, form):
        module, x, direction = attention(4, 2).double(), *torch.randn(2, 2, 7, 4, dtype=torch.float64)
        found, wanted = (
            torch.func.jvp(lambda x, name=name: in_form(module, name, x), (x,), (direction,))
            for name in (form, "plain")
        )
        torch.testing.assert_close(found, wanted)

    @pytest.mark.parametrize("form", FAST)
    def test_forward_over_backward_of_many_directions(self, form):
        hessians = []
        for name in ("plain", form):
            function, (x, *values) = self.function(name)
            cube = lambda x, function=function, values=values: function(x, *values).pow(3).sum()  # noqa: E731
            hessians.append(torch.func.hessian(cube)(x.detach()))
        torch.testing.assert_close(*hessians)


def test_second_derivatives_of_a_model_that_recomputes():
    gradients = []
    for form, with_cp in (("plain", False), ("covariance", False), ("covariance", True)):
        torch.manual_seed(0)
        arch = dict(embed_dim=16, depth=1, num_heads=2, eta=1.0)
        model = XCiT(arch, out_indices=(0,), attn_form=form, with_cp=with_cp, norm_cfg=dict(type="BN")).double()
        x = image(64, 96).requires_grad_()
        (first,) = torch.autograd.grad(model(x)[0].pow(3).sum(), x, create_graph=True)
        gradients.append(torch.autograd.grad(first.square().mean(), (x, *model.parameters()), allow_unused=True))
        assert model.blocks[0].local_mp.bn.num_batches_tracked == 1
    for a, b, c in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a)
        torch.testing.assert_close(c, a)


def work(form: str, tokens: int, dim: int, num_heads: int, train: bool = False) -> int:
    """Multiply-adds of an image as torch counts them."""
    with torch.device("meta"):
        module = XCA(dim, num_heads, form=form)
        x = torch.empty(1, tokens, dim)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
        out = module(x.requires_grad_(train))
        if train:
            out.sum().backward()
    return counter.get_total_flops() // 2


def test_the_backward_pass_of_the_covariance_takes_one_product():
    tokens, dim = 20000, 64
    products = work("covariance", tokens, dim, 4, train=True) / (tokens * dim**2)
    # Forward, the covariance and the output; backward, the covariance and two factors of the output.
    assert products == pytest.approx(5, rel=0.02)


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


@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["auto", *FAST])
def test_half_precision_is_as_good_as_plain(form, dtype, device):
    """Output and gradients, by their distance from float64."""
    module = attention(64, 4).to(device)
    x = torch.randn(1, 2000, 64).to(device).requires_grad_()

    def results(name: str, **autocast: Any) -> list[Tensor]:
        with torch.autocast(device, **autocast):
            out = in_form(module, name, x.to(module.proj.weight.dtype)).double()
        return [out, *torch.autograd.grad(out.pow(3).sum(), (x, *module.parameters()))]

    plain, found = results("plain", dtype=dtype), results(form, dtype=dtype)
    module.double()
    for exact, one, other in zip(results("plain", enabled=False), plain, found, strict=True):
        scale = exact.abs().mean()
        assert (other - exact).abs().mean() <= max(1.5 * (one - exact).abs().mean(), 1e-3 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_a_model_cast_to_another_type_stays_there(form, dtype):
    module = attention(16, 2, form=form).to(dtype)
    assert module(torch.randn(1, 60, 16).to(dtype)).dtype == dtype


@on_each_device
@pytest.mark.parametrize("form", FAST)
def test_a_million_tokens_do_not_overflow_half_precision(form, device):
    module = attention(8, 2).to(device)
    x = 30 * torch.randn(1, 1_000_000, 8, device=device)
    with torch.no_grad():
        exact = in_form(module, form, x)
        with torch.autocast(device, torch.float16):
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


SHAPES = sorted({(arch.embed_dim, arch.num_heads) for arch in ARCHS.values()})


@pytest.mark.parametrize("dim, num_heads", SHAPES)
@pytest.mark.parametrize("ratio", [0.25, 1, 1.4, 1.6, 2.4, 2.6, 5, 20])
def test_auto_takes_hardly_more_work_than_the_best_form(ratio, dim, num_heads):
    tokens = int(ratio * dim)
    least = min(work(form, tokens, dim, num_heads) for form in ("plain", *FAST))
    assert work("auto", tokens, dim, num_heads) <= 1.12 * least


@pytest.mark.parametrize("dim, num_heads", SHAPES)
def test_of_large_images_the_covariance_is_the_least_work(dim, num_heads):
    tokens = 50 * 84  # of 800x1344 pixels in patches of 16
    found = {form: work(form, tokens, dim, num_heads) for form in ("plain", *FAST)}
    assert found["covariance"] < 0.9 * found["gram"] < 0.8 * found["plain"]


@pytest.mark.parametrize("tokens, form", [(40, "plain"), (130, "gram"), (700, "covariance")])
def test_auto_is_one_of_the_forms(tokens, form):
    module = attention(64, 4)
    x = torch.randn(2, tokens, 64)
    with torch.no_grad():
        auto = in_form(module, "auto", x)
        equal = [name for name in ("plain", *FAST) if torch.equal(in_form(module, name, x), auto)]
    assert equal == [form]


def test_unknown_form():
    with pytest.raises(ValueError, match=r"'fast'.*plain, gram, covariance"):
        XCA(16, 2, form="fast")
