"""Reads checkpoint files with torch and safetensors. Nothing in a file runs.

torch loads only types on its allow-list and on the two lists of `allowed`.
"""

import re
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..utils.compat import TORCH
from . import plain_pickle
from .allowed import CHECKPOINT_TYPES, SUBSTITUTES

if TORCH >= (2, 6):
    from torch.serialization import add_safe_globals, safe_globals

    # mmengine reads its checkpoints by `torch.load`, which would reject their message hub.
    add_safe_globals(CHECKPOINT_TYPES)

_lock = threading.Lock()  # the substitutes apply to all threads


def load_from_file(filename: str | Path, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    The first bytes decide how the file is read, not its suffix. From a file of torch 1.6 or newer,
    only the tensors that are used are read from the disk.

    Args:
        map_location: See `torch.load`. Safetensors are read to the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a checkpoint, is damaged, or holds more than weights and known
            plain values.
    """
    check_checkpoint(filename)
    path = Path(filename).expanduser()
    with path.open("rb") as file:
        start = file.read(16)
    is_zip = start[:2] == b"PK"
    try:
        if start[8:9] == b"{":  # a header after its length
            return load_file(path)
        if TORCH < (2, 6):
            return plain_pickle.load_file(path, map_location, is_zip)
        # Allowed again, because OneDL's mmengine (0.10.12) forbids some after it loads a file.
        add_safe_globals(CHECKPOINT_TYPES)
        with _lock, safe_globals(SUBSTITUTES), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error follows the warning of TorchScript
            return torch.load(path, map_location, weights_only=True, mmap=is_zip)
    except Exception as error:  # a damaged file may raise nearly anything
        raise ValueError(f"cannot read {path} as a checkpoint: {_explain(error)}") from error


def meta_of(checkpoint: Any) -> Mapping[str, Any]:
    """Return what mmengine and mmcv 1 write about a run into a file, or {}."""
    meta = checkpoint.get("meta") if isinstance(checkpoint, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def check_checkpoint(path: str | Path) -> None:
    """Raise FileNotFoundError if there is no such local file."""
    if not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: give a local file")


def _explain(error: Exception) -> str:
    """Return in one short line why a file cannot be read. torch may quote the file's content."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        fix = "save its weights alone with the program that wrote it"
        return f"it names {named[1]}, which might run code: {fix}"
    message = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    first_line = message.partition("\n")[0][:300]
    cause = f"{type(error).__name__}: {first_line}"
    problem = "it is empty, a web page, damaged, or holds more than weights and plain values"
    return f"{problem} ({cause}): download it again, or save its weights alone"
