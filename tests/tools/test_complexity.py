"""The multiplications equal the published numbers."""

import complexity
import pytest
import textbook
from paths import ROOT

from xcit_mm.archs import ARCHS


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("arch", ["n12", "t12", pytest.param("s24", marks=pytest.mark.slow)])
def test_in_the_authors_order_they_are_the_published(arch, patch_size):
    model = complexity.build(arch, patch_size, "plain")
    found = complexity.count(model, 224)
    published = complexity.PUBLISHED[arch][patch_size == 8]
    # The published numbers have one decimal, cut off.
    assert published - 0.05 < found + complexity.authors_surplus(model, 224) < published + 0.1
    for module in list(model.modules()):
        written_out = getattr(textbook, type(module).__name__, None)
        if written_out:
            module.__class__ = written_out
    assert complexity.count(model, 224) - found == pytest.approx(complexity.authors_surplus(model, 224), rel=1e-3)


# Multiplications for every token, in units of C^2; see `XCA`. n12 has 4 heads.
@pytest.mark.parametrize("implementation, expected", [("gram", 3 + 1 / 4), ("covariance", 2)])
def test_implementations_multiply_as_documented(implementation, expected):
    dim, depth = ARCHS["n12"][:2]

    def per_token(name: str) -> float:
        small, large = (complexity.count(complexity.build("n12", 16, name), size) for size in (224, 448))
        return (large - small) * 1e9 / (784 - 196) / depth / dim**2

    assert per_token("plain") - per_token(implementation) == pytest.approx(4 + 2 / 4 - expected, rel=0.01)


@pytest.mark.parametrize("arch", ["n12", *(pytest.param(arch, marks=pytest.mark.slow) for arch in list(ARCHS)[1:])])
def test_the_table_of_the_documentation(arch):
    page = (ROOT / "docs" / "backbone.md").read_text()
    models = [complexity.build(arch, patch_size, "auto") for patch_size in (16, 8)]
    millions = sum(parameter.numel() for parameter in models[0].parameters()) / 1e6
    gflops = ", ".join(f"{complexity.count(model, 224):.1f}" for model in models)
    embed_dim, depth, num_heads, eta = ARCHS[arch][:4]
    assert f"| {arch} | {embed_dim} | {depth} | {num_heads} | {eta} | {millions:.1f} | {gflops} |" in page


def test_table(call):
    _, printed, _ = call("complexity", "n12", "--size", "96")
    header, _, p16, p8 = printed.splitlines()
    assert header == "| XCiT | parameters, M | GFLOPs published | authors' order | plain | auto |"
    assert p16.startswith("| N12/16 | 3.053 (3) |  | 0.1")  # not published at this size
    assert p8.startswith("| N12/8 | 3.049 (3) |")


def test_errors_are_one_line(refusal):
    assert "unknown arch 'x12'" in refusal("complexity", "x12")
