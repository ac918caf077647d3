"""Findings about config, data, model and machine: the doctor prints them, the start of a run raises on them."""

from .doctor import diagnose
from .launch import run_tool

__all__ = ["diagnose", "run_tool"]
