"""The data type that `--dtype auto` selects."""

import pytest

from xcit_mm.models import precision
from xcit_mm.models.precision import fast_dtype


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
