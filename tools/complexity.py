"""Print a table of parameters and multiplications of the classifiers, beside the published ones.

python tools/complexity.py [ARCH ...] [--size 224]

GFLOPs are 10^9 multiply-adds of one image in products, convolutions and norms. The columns:

    parameters     in brackets the published number
    published      numbers of the paper, at 224x224
    authors' order the authors' code, which also computes unused queries, keys and values in class attention, and
                   projects the positional encoding of every cell
    plain          this code with attn_implementation='plain'
    auto           this code by default on a CPU or in float32
"""

import argparse
import sys
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from xcit_mm import XCiTClassifier
from xcit_mm.archs import ARCHS, PATCH_SIZES
from xcit_mm.models.classifier import ClassAttention

MILLIONS = dict(n12=3, t12=7, t24=12, s12=26, s24=48, m24=84, l24=189)  # parameters. Source: paper, Table 1.
PUBLISHED = dict(  # 10^9 at 224x224, p16 and p8. Source: paper, Tables 1 and D.1.
    n12=(0.5, 2.1),
    t12=(1.2, 4.8),
    t24=(2.3, 9.2),
    s12=(4.8, 18.9),
    s24=(9.1, 36.0),
    m24=(16.2, 63.9),
    l24=(36.1, 142.2),
)


def build(arch: str, patch_size: int, implementation: str) -> XCiTClassifier:
    """Build a classifier in eval mode without the values of its weights, on which no count depends."""
    with torch.device("meta"):
        return XCiTClassifier(arch, patch_size, attn_implementation=implementation).eval()


@torch.no_grad()
def count(model: XCiTClassifier, size: int) -> float:
    """Return the multiply-adds of an image of size x size in 10^9. Hooks, as mmengine's analysis has, change them."""
    # As mmengine counts norms. torch counts a multiply-add as two.
    norms: Any = {
        torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 2 * 5 * prod(shape),
        torch.ops.aten._native_batch_norm_legit_no_training: lambda shape, *_, **__: 2 * 2 * prod(shape),
    }
    with FlopCounterMode(display=False, custom_mapping=norms) as counter:
        model(torch.zeros(1, 3, size, size, device="meta"))
    return counter.get_total_flops() / 2e9


def authors_surplus(model: XCiTClassifier, size: int) -> float:
    """Return the multiply-adds that the authors' code has in addition to 'plain', in 10^9."""
    dim, heads, side = model.arch.embed_dim, model.arch.num_heads, -(-size // model.patch_size)
    tokens = side**2
    blocks = sum(isinstance(module, ClassAttention) for module in model.modules())
    # q, k and v of all tokens, q^T k and A v; in this code the query of the CLS token alone, by head.
    attention = 3 * (tokens + 1) * dim**2 + 2 * (tokens + 1) * dim
    folded = 3 * dim**2 + 2 * (tokens + 1) * dim * heads
    features = model.pos_embeder.token_projection.in_channels
    position = features * dim * (tokens - side)  # in this code, each coordinate separately
    return (blocks * (attention - folded) + position) / 1e9


def table(archs: list[str], size: int) -> str:
    """Return the table in Markdown."""
    lines = ["| XCiT | parameters, M | GFLOPs published | authors' order | plain | auto |", "|---|---|---|---|---|---|"]
    for arch in archs:
        for index, patch_size in enumerate(PATCH_SIZES):
            model = build(arch, patch_size, "plain")
            plain, auto = count(model, size), count(build(arch, patch_size, "auto"), size)
            millions = sum(p.numel() for p in model.parameters()) / 1e6
            published = f"{PUBLISHED[arch][index]:.1f}" if size == 224 else ""
            order = plain + authors_surplus(model, size)
            numbers = " | ".join(f"{value:.2f}" for value in (order, plain, auto))
            parameters = f"{millions:.3f} ({MILLIONS[arch]})"
            lines.append(f"| {arch.upper()}/{patch_size} | {parameters} | {published} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", metavar="ARCH", help=f"default: {' '.join(ARCHS)}")
    parser.add_argument("--size", type=int, default=224, help="side of the image in pixels (default: %(default)s)")
    args = parser.parse_args()
    try:
        print(table(args.archs or list(ARCHS), args.size))
    except ValueError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
