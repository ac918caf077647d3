"""Reads checkpoint files with torch and safetensors. Nothing in a file runs.

torch reads what its own list and these ones name, and refuses a file that names anything else. None
of these classes and functions opens a file, imports a module or calls what the file chooses.
"""

import argparse
import re
import threading
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
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


# What makes numpy's arrays and scalars.
_NUMPY_FUNCTIONS: list[Any] = [np.ndarray(0).__reduce__()[0], np.float64(0).__reduce__()[0]]

CHECKPOINT_TYPES: list[Any] = [
    HistoryBuffer,
    OneCycleParamScheduler,
    ConfigDict,
    (_get_function, "builtins.getattr"),
    (frozenset, "builtins.frozenset"),
    (bytes, "builtins.bytes"),  # of no bytes; others are a text with its encoding
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"},  # numbers and text
    *((each, f"numpy.core.multiarray.{each.__name__}") for each in _NUMPY_FUNCTIONS),  # numpy 1
    *((each, f"numpy._core.multiarray.{each.__name__}") for each in _NUMPY_FUNCTIONS),
]
"""What a checkpoint of mmengine may hold, each read as what it is."""

SUBSTITUTES: list[Any] = [
    (argparse.Namespace, "argparse.Namespace"),
    (_ConfigValues, "mmengine.config.config.Config"),
    # torch sets items of no other dict, and appends to no other list.
    (lambda factory=None: {}, "collections.defaultdict"),
    (lambda items=(), length=None: list(items), "collections.deque"),
    *((kind, f"builtins.{kind.__name__}") for kind in (bool, dict, float, int, list, str, tuple)),
    *((PurePosixPath, f"{module}.PosixPath") for module in _PATHLIB),
    *((PureWindowsPath, f"{module}.WindowsPath") for module in _PATHLIB),
    *(
        (kind, f"{module}.{kind.__name__}")
        for module in _PATHLIB
        for kind in (PurePosixPath, PureWindowsPath)
    ),
]
"""What other training files hold, some of it read as a simpler class, by the name in the file."""

# mmengine reads its checkpoints by `torch.load`, which would reject the message hub in each of
# them.
add_safe_globals(CHECKPOINT_TYPES)

_AGAIN = "download or copy it again"
_FIX = "save its weights alone with the program that wrote it"
_lock = threading.Lock()  # the substitutes apply to all threads


def load_from_file(filename: str | Path, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    A file of torch 1.6 or newer is mapped into memory: only the tensors that are used are read from
    the disk.

    Args:
        filename: Path of the file. Its first bytes decide how it is read, not its suffix.
        map_location: See `torch.load`. Safetensors are read to the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a checkpoint, is damaged, or holds more than weights and known
            plain values.
    """
    path = Path(filename).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {filename}: check the path")
    with path.open("rb") as file:
        start = file.read(16)
    try:
        if start[8:9] == b"{":  # a header after its length
            return load_file(path)
        add_safe_globals(
            CHECKPOINT_TYPES
        )  # again: OneDL's mmengine (0.10.12) removes some after it loads a file
        with _lock, safe_globals(SUBSTITUTES), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error follows the warning of TorchScript
            return torch.load(path, map_location, weights_only=True, mmap=start[:2] == b"PK")
    except Exception as error:  # a damaged file may raise nearly anything
        raise ValueError(
            f"cannot read {path} as a checkpoint: {_explain(path, start, error)}"
        ) from error


def check_checkpoint(path: str | Path) -> None:
    """Raise FileNotFoundError if a local file does not exist. Others are downloaded later."""
    if "://" not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def _explain(path: Path, start: bytes, error: Exception) -> str:
    """Return why a file is not read, in one line of limited length, since torch's message may quote
    the file.
    """
    if not start:
        return f"it is empty, {_AGAIN}"
    if start.lstrip()[:1] == b"<":
        return f"it is a web page, probably of a failed download; {_AGAIN}"
    text, damaged = str(error), None
    if "TorchScript" in text:
        return (
            "it is a TorchScript archive, which holds code: save the module's state_dict() instead"
        )
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()  # torch ignores the checksums and stumbles over what is wrong
    if isinstance(error, UnpicklingError) and not damaged:
        if named := re.search(r"GLOBAL (\S+)", text):
            return f"it names {named[1]}, which might run code: {_FIX}"
        cause = _first_sentence(text.partition("WeightsUnpickler error: ")[2] or text)
        return f"it holds more than weights and plain values ({cause}): {_FIX}"
    what = (
        f"its record {damaged} is damaged"
        if damaged
        else "it is truncated, damaged or not a checkpoint"
    )
    return f"{what}, {_AGAIN} ({_first_sentence(text) or type(error).__name__})"


def _first_sentence(text: str) -> str:
    return re.split(r"\n|(?<=\.) ", text.strip(), maxsplit=1)[0][:300]
