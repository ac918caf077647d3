"""What checkpoints of this field hold beside tensors and plain values, for torch's reader, which runs no code.

torch reads what its own list and this one name, and refuses a file that names anything else. None of these classes and
functions opens a file, imports a module or calls what the file chooses.
"""

import argparse
import builtins
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

Known = Callable | tuple[Any, str]

# Functions that checkpoints of mmengine name through `getattr`: statistics of a log, and the shape of a schedule.
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


def _make_dict(factory: Any = None) -> dict:
    """Make a dict in place of a defaultdict: torch sets no items of other classes."""
    return {}


def _make_list(items: tuple = (), length: int | None = None) -> list:
    """Make a list in place of a deque: torch appends to no other class."""
    return list(items)


def _numpy_types() -> list[Known]:
    """Return what makes numpy's arrays and scalars of numbers and text, by the names of numpy 1 and 2."""
    functions: list[Any] = [np.ndarray(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    named = [(each, f"numpy.{core}.multiarray.{each.__name__}") for core in ("core", "_core") for each in functions]
    codes = np.typecodes["All"].translate({ord(code): None for code in "OV"})
    return [np.ndarray, np.dtype, *named, *{type(np.dtype(code)) for code in codes}]


CHECKPOINT_TYPES: list[Known] = [
    HistoryBuffer,
    OneCycleParamScheduler,
    ConfigDict,
    (_get_function, "builtins.getattr"),
    (frozenset, "builtins.frozenset"),
    (bytes, "builtins.bytes"),  # of no bytes; others are a text with its encoding
    *_numpy_types(),
]
"""What a checkpoint of mmengine may hold, each read as what it is."""

SUBSTITUTES: list[Known] = [
    (argparse.Namespace, "argparse.Namespace"),
    (_ConfigValues, "mmengine.config.config.Config"),
    (_make_dict, "collections.defaultdict"),
    (_make_list, "collections.deque"),
    *(
        (getattr(builtins, name), f"builtins.{name}")
        for name in ("bool", "dict", "float", "int", "list", "str", "tuple")
    ),
    *(
        (kind, f"{module}.{prefix}{system}Path")
        for module in ("pathlib", "pathlib._local")  # the latter in Python 3.13
        for system, kind in (("Posix", PurePosixPath), ("Windows", PureWindowsPath))
        for prefix in ("", "Pure")
    ),
]
"""What other training files hold, some of it read as a simpler class, by the name in the file."""
