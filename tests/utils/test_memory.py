"""Freed memory is kept where glibc can keep it, and else nothing changes."""

import ctypes
import platform

import pytest

from xcit_mm.utils.memory import keep_freed_memory


@pytest.mark.parametrize("accepts", [1, 0])
def test_a_glibc_that_refuses_the_threshold_is_left_as_it_is(accepts, monkeypatch):
    """Its second setting would switch off the threshold that adapts itself."""
    settings = []

    class Library:
        def mallopt(self, parameter: int, value: int) -> int:
            settings.append(parameter)
            return accepts

    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    keep_freed_memory()
    assert settings == ([-3, -1] if accepts else [-3])
