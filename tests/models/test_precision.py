"""The data type that `--dtype auto` selects, and models in half precision."""

import pytest
import torch
from torch import Tensor, nn

from xcit_mm.models import XCiT
from xcit_mm.models.precision import fast_dtype, prepare_for_autocast
from xcit_mm.ops import is_compiled


@pytest.mark.parametrize(
    "flag, expected",
    [("avx512_f", "float32"), ("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16")],
)
def test_bfloat16_is_fast_where_the_processor_multiplies_in_it(flag, expected, monkeypatch):
    capabilities = {"avx512_bf16": False, "amx_bf16": False, flag: True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert fast_dtype("cpu") == expected


@pytest.mark.parametrize("size", [64, 320])  # by each implementation of the attention
def test_autocast_leaves_a_model_in_float64_alone(size):
    arch = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
    model = XCiT(arch, out_indices=(0, 1), norm_cfg=dict(type="BN")).double().eval()
    image = torch.randn(1, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected = model(image)
        with torch.autocast("cpu", torch.bfloat16):
            actual = model(image)
    torch.testing.assert_close(actual, expected)


class RoIAlign(nn.Module):
    def forward(self, maps: Tensor, boxes: Tensor) -> bool:
        return maps.is_contiguous()


def test_necks_heads_and_roi_align_get_their_types_and_layouts():
    model = nn.Module()
    model.neck = nn.Conv2d(3, 4, 3)
    model.roi_align = RoIAlign()
    model.roi_head = nn.Module()
    model.roi_head.shared_head = nn.Conv2d(3, 4, 3)
    prepare_for_autocast(nn.DataParallel(model))  # wrapped, as for a training by DDP
    with torch.autocast("cpu", torch.bfloat16):
        for part in (model.neck, model.roi_head.shared_head):
            maps = part(torch.randn(1, 3, 8, 8))
            assert maps.dtype == torch.float32
            assert maps.is_contiguous(memory_format=torch.channels_last)
    assert model.roi_align(maps, torch.zeros(1, 5)) == is_compiled()
