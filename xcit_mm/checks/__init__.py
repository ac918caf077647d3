"""Findings about config, data, model and machine. The doctor prints them, and the start of a run
raises on failures.
"""

from .doctor import diagnose
from .launch import run_tool

__all__ = ["diagnose", "run_tool"]
