"""Types that a checkpoint may hold in addition to tensors and plain values.

None of them opens a file, imports a module or calls a function that the file chooses.
"""

import argparse
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

# Checkpoints of mmengine name these functions through `getattr`: statistics of a log, and the shape
# of a schedule.
_FUNCTIONS: dict[type, tuple[str, ...]] = {
    HistoryBuffer: ("min", "max", "mean", "current"),
    OneCycleParamScheduler: ("_annealing_cos", "_annealing_linear"),
}


def _get_function(owner: Any, name: str) -> Callable:
    if not isinstance(owner, type) or name not in _FUNCTIONS.get(owner, ()):
        raise UnpicklingError(f"it asks for the attribute {name} of {owner}")
    return getattr(owner, name)


def _make_dict(factory: object = None) -> dict:
    return {}


# Functions that rebuild arrays and scalars of numpy.
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

# Paths are read as pure ones, which any system has.
_PATHS: dict[str, type] = {
    "PosixPath": PurePosixPath,
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
    "WindowsPath": PureWindowsPath,
}
_PLAIN_TYPES = (bool, dict, float, int, list, str, tuple)

SUBSTITUTES: list[Any] = [
    (argparse.Namespace, "argparse.Namespace"),
    (_make_dict, "collections.defaultdict"),  # torch fills only plain dicts
    *((plain, f"builtins.{plain.__name__}") for plain in _PLAIN_TYPES),
    *((path, f"pathlib.{name}") for name, path in _PATHS.items()),
    *((path, f"pathlib._local.{name}") for name, path in _PATHS.items()),  # in Python 3.13
]
"""Types in other training files, with their names there. Some are read as a simpler type."""
