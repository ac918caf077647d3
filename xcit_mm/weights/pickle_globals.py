"""The classes and functions that the pickle in a checkpoint may name, and the harmless replacement of each.

torch writes tensors and plain containers, mmengine its `HistoryBuffer` and the metainfo of data sets, the authors'
training files an `argparse.Namespace`. Paths, deques and defaultdicts become strings, lists and dicts. Nothing else has
a replacement, and no replacement imports a module, opens a file or runs code that the file chooses.
"""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

__all__ = ["GLOBALS", "Global", "Namespace", "check_keys", "check_type", "name_of"]


@dataclass(frozen=True, eq=False)
class Global:
    """A class or function that a pickle may name. A file can only do with it what the fields allow.

    Attributes:
        path: Module and name.
        call: Runs in place of a call.
        new: Makes an object without arguments, which then gets a state.
        methods: Methods whose names the pickle may read.
    """

    path: str
    call: Callable[..., Any] | None = None
    new: Callable[[], Any] | None = None
    methods: tuple[str, ...] = ()


class Namespace:
    """Inert stand-in for `argparse.Namespace`."""


def name_of(value: Any) -> str:
    """Return a short name of a file's value for an error. Its `repr` could take forever or load modules of torch."""
    if isinstance(value, Global):
        return value.path
    return repr(value[:100]) if isinstance(value, str) else f"a {type(value).__name__}"


def check_type(value: Any, *types: type) -> None:
    """Check the exact type of an argument in the file.

    Functions of Python and numpy iterate over anything, compare it, or quote it in an error. That may never end, for
    example for an array of 10**12 empty strings, which takes no byte of the file.

    Raises:
        ValueError: If it has another type.
    """
    if type(value) not in types:
        raise ValueError(f"it holds {name_of(value)} in place of a {types[0].__name__}: do not trust it")


def check_keys(keys: list | tuple) -> None:
    """Check that keys are plain values or tuples of them: to hash a deeply nested key overflows the C stack.

    Raises:
        ValueError: If a key is anything else.
    """
    check_type(keys, list, tuple)
    plain = (str, bytes, int, float, complex, np.generic, type(None))
    for key in keys:
        if not all(isinstance(part, plain) for part in (key if type(key) is tuple else (key,))):
            raise ValueError(f"it has a key of type {type(key).__name__}, as no checkpoint has")


def _method_name(owner: Any, name: Any) -> str:
    """Return the name of a method in place of the method, for `builtins.getattr`."""
    if not isinstance(owner, Global) or not isinstance(name, str) or name not in owner.methods:
        raise ValueError(f"it asks for attribute {name_of(name)} of {name_of(owner)}: it is not a plain checkpoint")
    return name


def _empty_array(kind: object, shape: tuple, typecode: bytes) -> np.ndarray:
    """Make the array whose shape and values `ndarray.__setstate__` sets."""
    return np.empty(0, np.int8)


def _dtype(name: str, *flags: bool) -> np.dtype:
    """Make a dtype of numbers or text. A dtype of objects would turn bytes of the file into pointers."""
    check_type(name, str)
    dtype = np.dtype(name)
    if dtype.kind not in "biufcSU":
        raise ValueError(f"it holds an array of {dtype}, which is not of numbers: do not trust it")
    return dtype


def _scalar(dtype: np.dtype, data: bytes) -> np.generic:
    check_type(data, bytes)
    if not isinstance(dtype, np.dtype):
        raise ValueError(f"it holds a number of type {name_of(dtype)}: do not trust it")
    return np.frombuffer(data, dtype)[0]


def _complex(real: float, imag: float) -> complex:
    check_type(real, float)
    check_type(imag, float)
    return complex(real, imag)


def _counter(counts: dict) -> collections.Counter:
    return collections.Counter(dict.copy(counts))


def _ordered_dict(pairs: list = []) -> collections.OrderedDict:  # noqa: B006  never changed
    check_type(pairs, list)
    for pair in pairs:
        check_type(pair, list, tuple)
    check_keys([key for key, _ in pairs])
    return collections.OrderedDict(pairs)


def _config_dict(items: dict) -> ConfigDict:
    """Make mmengine's dict without its `__init__`, which would copy a dict for each dict that holds it."""
    config = ConfigDict()
    dict.update(config, dict.copy(items))
    return config


def _plain_dict(factory: object = None) -> dict:
    """Make a dict in place of a defaultdict; its items follow."""
    return {}


def _plain_list(items: tuple = (), length: int | None = None) -> list:
    """Make a list in place of a deque, whose items follow."""
    check_type(items, tuple)
    if items:
        raise ValueError("it holds a deque that Python did not write: do not trust it")
    return []


def _plain_set(kind: type, items: list = []) -> set | frozenset:  # noqa: B006  never changed
    check_keys(items)
    return kind(items)


def _size(lengths: tuple) -> torch.Size:
    check_type(lengths, tuple)
    return torch.Size(lengths)


def _device(kind: str, *index: int) -> torch.device:
    check_type(kind, str)
    for number in index:
        check_type(number, int)
    return torch.device(kind, *index)


def _path_text(kind: type[PurePath], *parts: str) -> str:
    for part in parts:
        check_type(part, str)
    return str(kind(*parts))


def _no_bytes() -> bytes:
    """Return b"", which protocol 2 writes as a call of `bytes`. A size as its argument could take all memory."""
    return b""


def _latin1(text: str, encoding: str) -> bytes:
    """Return bytes, which protocol 2 writes as encoded text."""
    return str.encode(text, "latin1")


def _parameter(data: torch.Tensor, *options: Any) -> torch.Tensor:
    return data


def _unsupported_tensor(*description: Any) -> torch.Tensor:
    """Reject what torch writes by `_rebuild_tensor_v3`: the types without a storage class."""
    raise ValueError(
        f"it holds a tensor of {next((part for part in description if isinstance(part, torch.dtype)), 'no type')}, "
        "which is not supported: save it as float16, bfloat16, float32 or a signed integer"
    )


_FUNCTIONS: dict[str, Callable] = {
    "_codecs.encode": _latin1,
    "builtins.bytes": _no_bytes,
    "builtins.complex": _complex,
    "builtins.frozenset": partial(_plain_set, frozenset),
    "builtins.getattr": _method_name,
    "builtins.set": partial(_plain_set, set),
    "collections.Counter": _counter,
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": _plain_dict,
    "collections.deque": _plain_list,
    "mmengine.config.config.ConfigDict": _config_dict,
    "numpy.dtype": _dtype,
    "torch.Size": _size,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor_v3": _unsupported_tensor,
    "torch.device": _device,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # the latter since numpy 2
    _FUNCTIONS |= {f"{_module}._reconstruct": _empty_array, f"{_module}.scalar": _scalar}
for _module in ("pathlib", "pathlib._local"):  # the latter in Python 3.13
    for _kind in (PurePosixPath, PureWindowsPath):
        for _name in (_kind.__name__, _kind.__name__.removeprefix("Pure")):
            _FUNCTIONS[f"{_module}.{_name}"] = partial(_path_text, _kind)

# Arguments of those functions, of which a file can do nothing else: the class of an array, the factories of a
# defaultdict, with the names that protocol 2 keeps of Python 2.
_INERT = (
    "numpy.ndarray",
    *(f"builtins.{name}" for name in ("dict", "float", "int", "list", "long", "str", "tuple", "unicode")),
)

_CLASSES = (
    Global("argparse.Namespace", new=Namespace),
    Global(
        "mmengine.logging.history_buffer.HistoryBuffer",
        new=HistoryBuffer,
        methods=("min", "max", "mean", "current"),
    ),
    Global(
        "mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler",
        methods=("_annealing_cos", "_annealing_linear"),
    ),
)

_STORAGES = {
    **{name: name.lower() for name in ("BFloat16", "Bool", "Double", "Float", "Half", "Int", "Long", "Short")},
    **dict(Byte="uint8", Char="int8", ComplexDouble="cdouble", ComplexFloat="cfloat", Untyped="uint8"),
}

GLOBALS: dict[str, Any] = {
    **{path: Global(path, call=function) for path, function in _FUNCTIONS.items()},
    **{path: Global(path) for path in _INERT},
    **{kind.path: kind for kind in _CLASSES},
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **{
        f"{module}.{name}Storage": vars(torch)[dtype]
        for name, dtype in _STORAGES.items()
        for module in ("torch", "torch.storage")
    },
}
"""Replacements by module and name. A storage class stands for the dtype of its elements."""
