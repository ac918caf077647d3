"""The data type that `--dtype auto` selects, and models in half precision."""

import pytest
import torch
from torch import Tensor, nn

from xcit_mm.models import precision
from xcit_mm.models.precision import fast_dtype, prepare_for_autocast


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """Returns a function that sets the flags of the processor."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)

    def set_flags(flags: str) -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nflags\t\t: fpu sse4_2 {flags}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(precision, "CPU_INFO", path)

    return set_flags


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx2 avx512f", "float32"), ("avx512f avx512_bf16", "bfloat16"), ("amx_bf16 amx_tile", "bfloat16")],
)
def test_bfloat16_is_fast_where_the_processor_multiplies_in_it(flags, expected, processor):
    processor(flags)
    assert fast_dtype("cpu") == expected


def test_float32_where_the_processor_may_not_use_its_instructions(processor, monkeypatch):
    processor("avx512_bf16 amx_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core")
    assert fast_dtype("cpu") == "float32"


def test_float32_on_systems_that_do_not_name_the_instructions(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "missing")
    assert fast_dtype("cpu") == "float32"


class RoIAlign(nn.Module):
    def forward(self, maps: Tensor, boxes: Tensor) -> bool:
        return maps.is_contiguous()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_compiled_roi_align_reads_maps_in_its_layout(is_compiled, monkeypatch):
    monkeypatch.setattr(precision, "is_compiled", lambda: is_compiled)
    model = nn.Module()
    model.neck, model.roi_align = nn.Conv2d(3, 4, 3), RoIAlign()
    prepare_for_autocast(model)
    with torch.autocast("cpu", torch.bfloat16):
        maps = model.neck(torch.randn(1, 3, 8, 8))
    assert maps.dtype == torch.float32
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert model.roi_align(maps, torch.zeros(1, 5)) == is_compiled
