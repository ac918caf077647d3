"""Reads checkpoint files with torch and safetensors. Nothing in a file runs.

torch loads only types on its allow-list and on the two lists here. None of them opens a file,
imports a module or calls what the file chooses.
"""

import argparse
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from safetensors.torch import load_file
from torch.serialization import add_safe_globals, safe_globals

_PATHLIB = ("pathlib", "pathlib._local")  # the latter in Python 3.13
_PURE = ("", "Pure")

# Functions that checkpoints of mmengine name through `getattr`: statistics of a log, and the shape
# of a schedule.
_FUNCTIONS: dict[type, tuple[str, ...]] = {
    HistoryBuffer: ("min", "max", "mean", "current"),
    OneCycleParamScheduler: ("_annealing_cos", "_annealing_linear"),
}


def _get_function(owner: Any, name: str) -> Callable:
    if not isinstance(owner, type) or name not in _FUNCTIONS.get(owner, ()):
        raise UnpicklingError(f"it asks for the attribute {name} of {owner}")
    return getattr(owner, name)


class _ConfigValues(dict):
    """The values of an mmengine `Config`, whose own class opens files."""

    def __setstate__(self, state: tuple) -> None:
        self.update(state[0])


def _make_dict(factory: object = None) -> dict:
    return {}


def _make_list(items: Iterable = (), length: int | None = None) -> list:
    return list(items)


# The functions by which pickle rebuilds arrays and scalars of numpy.
_NUMPY_FUNCTIONS: list[Any] = [np.ndarray(0).__reduce__()[0], np.float64(0).__reduce__()[0]]

CHECKPOINT_TYPES: list[Any] = [
    HistoryBuffer,
    OneCycleParamScheduler,
    ConfigDict,
    (_get_function, "builtins.getattr"),
    (frozenset, "builtins.frozenset"),
    (bytes, "builtins.bytes"),  # b"" is pickled as a call of it
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"},  # numbers and text
    *((make, f"numpy.core.multiarray.{make.__name__}") for make in _NUMPY_FUNCTIONS),  # numpy 1
    *((make, f"numpy._core.multiarray.{make.__name__}") for make in _NUMPY_FUNCTIONS),
]
"""Types that a checkpoint of mmengine may hold, and functions that rebuild them."""

SUBSTITUTES: list[Any] = [
    (argparse.Namespace, "argparse.Namespace"),
    (_ConfigValues, "mmengine.config.config.Config"),
    # torch fills only plain dicts and plain lists.
    (_make_dict, "collections.defaultdict"),
    (_make_list, "collections.deque"),
    *(
        (type_, f"builtins.{type_.__name__}")
        for type_ in (bool, dict, float, int, list, str, tuple)
    ),
    *((PurePosixPath, f"{module}.{prefix}PosixPath") for module in _PATHLIB for prefix in _PURE),
    *(
        (PureWindowsPath, f"{module}.{prefix}WindowsPath")
        for module in _PATHLIB
        for prefix in _PURE
    ),
]
"""Types in other training files by their names there. Some are read as a simpler type."""

# mmengine reads its checkpoints by `torch.load`, which would reject their message hub.
add_safe_globals(CHECKPOINT_TYPES)

_lock = threading.Lock()  # the substitutes apply to all threads


def load_from_file(filename: str | Path, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    Its first bytes decide how it is read, not its suffix. Of a file of torch 1.6 or newer only the
    tensors that are used are read from the disk.

    Args:
        map_location: See `torch.load`. Safetensors are read to the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a checkpoint, is damaged, or holds more than weights and known
            plain values.
    """
    path = Path(filename).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {filename}: check the path")
    with path.open("rb") as file:
        start = file.read(16)
    try:
        if start[8:9] == b"{":  # a header after its length
            return load_file(path)
        # Allowed again, because OneDL's mmengine (0.10.12) forbids some after it loads a file.
        add_safe_globals(CHECKPOINT_TYPES)
        with _lock, safe_globals(SUBSTITUTES), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error follows the warning of TorchScript
            return torch.load(path, map_location, weights_only=True, mmap=start[:2] == b"PK")
    except Exception as error:  # a damaged file may raise nearly anything
        raise ValueError(f"cannot read {path} as a checkpoint: {_explain(error)}") from error


def meta_of(checkpoint: Any) -> Mapping[str, Any]:
    """Return what mmengine and mmcv 1 write about a run into the content of a file, or {}."""
    meta = checkpoint.get("meta") if isinstance(checkpoint, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def check_checkpoint(path: str | Path) -> None:
    """Raise FileNotFoundError if a local file does not exist. URLs are not checked."""
    if "://" not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def _explain(error: Exception) -> str:
    """Return why a file cannot be read, in one short line. Messages of torch may quote the file."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        fix = "save its weights alone with the program that wrote it"
        return f"it names {named[1]}, which might run code: {fix}"
    message = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    sentence = re.split(r"\n|(?<=\.) ", message, maxsplit=1)[0][:300]
    cause = f"{type(error).__name__}: {sentence}"
    problem = "it is empty, a web page, damaged, or holds more than weights and plain values"
    return f"{problem} ({cause}): download it again, or save its weights alone"
