"""Export of trained models to ONNX, and `run.py`, which runs them without torch."""

from importlib.util import find_spec

import torch

from ..utils.compat import TORCH

if TORCH < (2, 8):
    problem = f"torch {torch.__version__} is installed"
    raise ModuleNotFoundError(f"{problem}: export needs torch 2.8 or newer")
if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if not find_spec(name)]:
    raise ModuleNotFoundError(f"export needs {missing[0]}: pip install xcit_mm[export]")

from .onnx_file import export

__all__ = ["export"]
