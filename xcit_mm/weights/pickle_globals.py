"""The classes and functions that the pickle in a checkpoint may name, and the harmless replacement of each.

torch writes tensors and plain containers, mmengine its `HistoryBuffer` and the metainfo of data sets, the authors'
training files an `argparse.Namespace`. Paths, deques and defaultdicts become strings, lists and dicts. Nothing else has
a replacement, and no replacement imports a module, opens a file or runs code that the file chooses.
"""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer


@dataclass(frozen=True, eq=False)
class Global:
    """A class or function that a pickle may name. A file can only do with it what the fields allow.

    Attributes:
        path: Module and name.
        call: Runs in place of a call.
        types: Types of its arguments. Functions of Python and numpy iterate over anything, compare it, or quote it in
            an error. That may never end, for example for 10**12 empty strings, which take no byte of the file.
        new: Makes an object without arguments, which then gets a state.
        methods: Methods whose names the pickle may read.
    """

    path: str
    call: Callable[..., Any] | None = None
    types: tuple[type, ...] = ()
    new: Callable[[], Any] | None = None
    methods: tuple[str, ...] = ()


class Namespace:
    """Inert stand-in for `argparse.Namespace`."""


def name_of(value: Any) -> str:
    """Return a short name of a file's value for an error. Its `repr` could take forever or load modules of torch."""
    if isinstance(value, Global):
        return value.path
    return repr(value[:100]) if isinstance(value, str) else f"a {type(value).__name__}"


def check_type(value: Any, kind: type) -> None:
    """Raise ValueError if a value of the file has another type."""
    if not isinstance(value, kind):
        raise ValueError(f"it holds {name_of(value)} in place of a {kind.__name__}: do not trust it")


def check_keys(keys: list, count: int = 0) -> None:
    """Check the keys that join a container of `count` others: plain values or tuples of them, few of equal hashes.

    To hash a deeply nested key overflows the C stack. A file can choose large integers, complex numbers and tuples of
    equal hashes, for which a dict takes quadratic time.
    """
    plain = (str, bytes, int, float, complex, np.generic, type(None))
    for key in keys:
        if not all(isinstance(part, plain) for part in (key if type(key) is tuple else (key,))):
            raise ValueError(f"it has a key of type {type(key).__name__}, as no checkpoint has")
        large = isinstance(key, int) and key.bit_length() > 60
        if (large or isinstance(key, (tuple, complex, np.complexfloating))) and count + len(keys) > 1000:
            raise ValueError(f"it has keys of type {type(key).__name__} among more than 1000, as no checkpoint has")


def _method_name(owner: Global, name: str) -> str:
    """Return the name of a method in place of the method."""
    if name not in owner.methods:
        raise ValueError(f"it asks for attribute {name_of(name)} of {owner.path}: it is not a plain checkpoint")
    return name


def _dtype(name: str, *flags: object) -> np.dtype:
    """Make a dtype of numbers or text. A dtype of objects would turn bytes of the file into pointers."""
    dtype = np.dtype(name)
    if dtype.kind not in "biufcSU":
        raise ValueError(f"it holds an array of {dtype}, which is not of numbers: do not trust it")
    return dtype


def _ordered_dict(*pairs: list) -> collections.OrderedDict:
    for pair in (pair for items in pairs for pair in items):
        check_type(pair, list)
        check_keys(pair[:1])
    return collections.OrderedDict(*pairs)


def _config_dict(items: dict) -> ConfigDict:
    """Make mmengine's dict without its `__init__`, which would copy a dict for each dict that holds it."""
    config = ConfigDict()
    dict.update(config, dict.copy(items))
    return config


def _list(items: tuple = (), length: int | None = None) -> list:
    """Make a list in place of a deque, whose items follow."""
    if items:
        raise ValueError("it holds a deque that Python did not write: do not trust it")
    return []


def _set(*items: list) -> set:
    for keys in items:
        check_keys(keys)
    return set(*items)


def _unsupported_tensor(*description: Any) -> torch.Tensor:
    """Reject a tensor of a type without a storage class."""
    raise ValueError(
        f"it holds a tensor of {description[6]}, which is not supported: "
        "save it as float16, bfloat16, float32 or a signed integer"
    )


_FUNCTIONS = [
    Global("_codecs.encode", lambda text, encoding: text.encode("latin1"), (str, str)),  # bytes in protocol 2
    Global("builtins.bytes", lambda: b""),  # with a size it could take all memory
    Global("builtins.complex", complex, (float, float)),
    Global("builtins.frozenset", lambda *items: frozenset(_set(*items)), (list,)),
    Global("builtins.getattr", _method_name, (Global, str)),
    Global("builtins.set", _set, (list,)),
    Global("collections.Counter", lambda counts: collections.Counter(dict.copy(counts)), (dict,)),
    Global("collections.OrderedDict", _ordered_dict, (list,)),
    Global("collections.defaultdict", lambda *factory: {}, (object,)),
    Global("collections.deque", _list, (tuple, object)),
    Global("mmengine.config.config.ConfigDict", _config_dict, (dict,)),
    Global("numpy.dtype", _dtype, (str, object, object)),
    Global("torch.Size", torch.Size, (tuple,)),
    Global("torch._utils._rebuild_parameter", lambda data, *options: data, (torch.Tensor, object, object)),
    Global("torch._utils._rebuild_tensor_v3", _unsupported_tensor, (*[object] * 6, torch.dtype, object)),
    Global("torch.device", torch.device, (str, int)),
]
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # the latter since numpy 2
    # `_reconstruct` makes an array whose shape and values `ndarray.__setstate__` sets.
    _FUNCTIONS += [
        Global(f"{_module}._reconstruct", lambda *_: np.empty(0, np.int8), (object, object, object)),
        Global(f"{_module}.scalar", lambda dtype, data: np.frombuffer(data, dtype)[0], (np.dtype, bytes)),
    ]
for _module in ("pathlib", "pathlib._local"):  # the latter in Python 3.13
    for _name, _kind in (("Posix", PurePosixPath), ("Windows", PureWindowsPath)):
        for _prefix in ("", "Pure"):
            # Any number of parts, up to a limit.
            _FUNCTIONS.append(
                Global(f"{_module}.{_prefix}{_name}Path", lambda *parts, kind=_kind: str(kind(*parts)), (str,) * 256)
            )

_CLASSES = [
    Global("argparse.Namespace", new=Namespace),
    Global(
        "mmengine.logging.history_buffer.HistoryBuffer", new=HistoryBuffer, methods=("min", "max", "mean", "current")
    ),
    Global(
        "mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler",
        methods=("_annealing_cos", "_annealing_linear"),
    ),
    # Arguments of the functions: the class of an array, the factories of a defaultdict by Python 3's and 2's names.
    Global("numpy.ndarray"),
    *(Global(f"builtins.{name}") for name in ("dict", "float", "int", "list", "long", "str", "tuple", "unicode")),
]

_STORAGES = {
    **{name: name.lower() for name in ("BFloat16", "Bool", "Double", "Float", "Half", "Int", "Long", "Short")},
    **dict(Byte="uint8", Char="int8", ComplexDouble="cdouble", ComplexFloat="cfloat", Untyped="uint8"),
}

GLOBALS: dict[str, Any] = {
    **{replacement.path: replacement for replacement in (*_FUNCTIONS, *_CLASSES)},
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **{
        f"{module}.{name}Storage": vars(torch)[dtype]
        for name, dtype in _STORAGES.items()
        for module in ("torch", "torch.storage")
    },
}
"""Replacements by module and name. A storage class stands for the dtype of its elements."""
