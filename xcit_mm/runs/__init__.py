"""A run before it costs anything: its config, the doctor's checks, launching the library's script."""

from .doctor import diagnose
from .launch import run_tool

__all__ = ["diagnose", "run_tool"]
