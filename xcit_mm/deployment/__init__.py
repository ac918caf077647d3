"""Export of trained models to ONNX, and `run.py`, which runs them without torch."""

import torch

from ..utils.compat import TORCH

if TORCH < (2, 8):
    problem = f"torch {torch.__version__} is installed"
    raise ModuleNotFoundError(f"{problem}: export needs torch 2.8 or newer")

from .onnx_file import export

__all__ = ["export"]
