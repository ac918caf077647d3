"""The tokens after any block of a built backbone."""

import pytest
import torch

from xcit_mm import XCiT


@pytest.fixture(scope="module")
def backbone() -> XCiT:
    torch.manual_seed(0)
    return XCiT("n12").eval()


def test_the_maps_are_those_that_hooks_see(backbone):
    seen = {}
    hooks = [
        block.register_forward_hook(lambda *call, number=number: seen.update({number: call[2]}))
        for number, block in enumerate(backbone.blocks)
    ]
    image = torch.rand(2, 3, 96, 64)
    maps = backbone.forward_intermediates(image)
    for hook in hooks:
        hook.remove()
    assert len(maps) == 12 and maps[0].shape == (2, 128, 6, 4)
    for number, tokens in enumerate(backbone.forward_intermediates(image, output_fmt="NLC")):
        torch.testing.assert_close(tokens, seen[number], rtol=0, atol=0)
    last = backbone.forward_intermediates(image, 2)
    named = backbone.forward_intermediates(image, [10, -1])
    assert all(map(torch.equal, last, named)) and torch.equal(last[1], maps[11])


@pytest.mark.parametrize(
    "arguments",
    [
        *(dict(indices=indices) for indices in ([12], [3, 1], -1, 0, 13)),
        dict(output_fmt="NHWC"),
    ],
    ids=str,
)
def test_a_block_or_format_that_is_not_there_is_named(arguments, backbone):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^{name}=.*: (choose|give)"):
        backbone.forward_intermediates(torch.zeros(1, 3, 64, 64), **arguments)
