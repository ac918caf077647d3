"""A pickle reader that runs no code.

It makes tensors, numpy arrays, plain containers, and the `HistoryBuffer` objects of mmengine, whose
methods are pickled through `builtins.getattr`: of those it keeps the names. A file cannot name
anything else, can call nothing but the functions of `_CALLED`, and cannot change the attributes of
a class or function.

torch's `weights_only` reader takes stand-ins for the same classes, but some files harm it: a deeply
nested key ends the process, an error that prints a value of the file may never end, and a call of
`bytearray` takes any amount of memory. `tests/weights/test_hostile_files.py` has such files.
"""

import collections
import math
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from types import FunctionType
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

__all__ = ["GetStorage", "Namespace", "Storage", "Unpickler"]

GetStorage = Callable[[str, int, int, str], torch.UntypedStorage]

# Largest size of all tensors together, in sizes of the file. Copies that share their data, such as
# `model` and `model_ema`, make it 2. An expanded tensor of a few bytes may claim any size, which a
# copy of it would take.
_GROWTH = 8


class Namespace:
    """Inert stand-in for `argparse.Namespace`, which the authors' training files hold."""


class OneCycleParamScheduler:
    """Inert stand-in for mmengine's, whose state holds a function of the class."""


class Storage(NamedTuple):
    """The data that tensors are views of."""

    data: torch.UntypedStorage
    dtype: torch.dtype
    size: int


def _name(value: Any) -> str:
    """Short name of a file's value for an error. Its `repr` could take forever, and may load more of torch."""
    if isinstance(value, str):
        return repr(value)
    return value.__name__ if isinstance(value, type | FunctionType) else f"a {type(value).__name__}"


def _check_keys(keys: Iterable) -> None:
    """Refuse all keys but plain values and tuples of them: the hash of a deeply nested key overflows the stack."""
    plain = (str, bytes, int, float, complex, np.generic, type(None))
    for key in keys:
        parts = key if type(key) is tuple else (key,)
        if not all(isinstance(part, plain) for part in parts):
            raise pickle.UnpicklingError(f"it has a key of type {type(key).__name__}: no checkpoint has")


# Functions that a file may call, in place of those that it names.


def _method_name(owner: Any, name: Any) -> str:
    """Name of a method that mmengine's checkpoints hold, for `builtins.getattr`."""
    known = next((names for kind, names in _METHODS if kind is owner), ())
    if not isinstance(name, str) or name not in known:
        raise pickle.UnpicklingError(
            f"the file asks for attribute {_name(name)} of {_name(owner)}: it is not a plain checkpoint"
        )
    return name


def _empty_array(kind: object, shape: tuple, typecode: bytes) -> np.ndarray:
    """numpy's `_reconstruct`: an array that gets its shape and content from `__setstate__`."""
    return np.empty(0, np.int8)


def _dtype(name: str, *flags: bool) -> np.dtype:
    """A dtype of numbers or bytes; a dtype of objects would make pointers of a file's bytes."""
    dtype = np.dtype(str(name))
    if dtype.kind not in "biufcSU":
        raise pickle.UnpicklingError(f"it holds an array of {dtype}, which is not of numbers: do not trust it")
    return dtype


def _scalar(dtype: np.dtype, data: bytes) -> np.generic:
    return np.frombuffer(data, dtype)[0]


def _counter(counts: dict) -> collections.Counter:
    return collections.Counter(dict.copy(counts))


def _ordered_dict(items: Iterable = ()) -> collections.OrderedDict:
    pairs = list(items.items()) if isinstance(items, dict) else [tuple(item) for item in items]
    _check_keys(key for key, _ in pairs)
    return collections.OrderedDict(pairs)


def _config_dict(items: dict) -> ConfigDict:
    """mmengine's dict of a config, which the metainfo of data sets may hold."""
    config = ConfigDict()
    # Its own __init__ copies a dict each time that it is held, which may take forever.
    dict.update(config, dict.copy(items))
    return config


def _plain_dict(factory: object = None) -> dict:
    """A dict for a defaultdict, without the file's factory; the items follow."""
    return {}


def _plain_list(items: tuple = (), length: int | None = None) -> list:
    """A list for a deque, whose items follow."""
    if type(items) is not tuple or items:
        raise pickle.UnpicklingError("it holds a deque that is not spelled as Python does: do not trust it")
    return []


def _plain_set(kind: type, items: Iterable = ()) -> set | frozenset:
    _check_keys(items)
    return kind(items)


def _path(kind: type[PurePath], *parts: str) -> str:
    return str(kind(*parts))


def _no_bytes() -> bytes:
    """b"" as protocol 2 spells it, such as the content of an empty array; a size would take that much memory."""
    return b""


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes as protocol 2 spells them."""
    return str.encode(text, "latin1")


def _parameter(data: torch.Tensor, *rest: Any) -> torch.Tensor:
    return data


def _unread_type(*description: Any) -> torch.Tensor:
    """torch's `_rebuild_tensor_v3`, for types that have no storage class in torch."""
    raise pickle.UnpicklingError(
        f"it holds a tensor of {next((part for part in description if isinstance(part, torch.dtype)), 'no type')}, "
        "which is not supported: save it as float16, bfloat16, float32 or a signed integer"
    )


_METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (HistoryBuffer, ("min", "max", "mean", "current")),
    (OneCycleParamScheduler, ("_annealing_cos", "_annealing_linear")),
)
_CALLED: dict[str, Callable] = {
    "_codecs.encode": _encoded,
    "builtins.bytes": _no_bytes,
    "builtins.complex": complex,
    "builtins.frozenset": partial(_plain_set, frozenset),
    "builtins.getattr": _method_name,
    "builtins.set": partial(_plain_set, set),
    "collections.Counter": _counter,
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": _plain_dict,
    "collections.deque": _plain_list,
    "mmengine.config.config.ConfigDict": _config_dict,
    "numpy.dtype": _dtype,
    "torch.Size": torch.Size,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor_v3": _unread_type,
    "torch.device": torch.device,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # the latter in numpy 2
    _CALLED |= {f"{_module}._reconstruct": _empty_array, f"{_module}.scalar": _scalar}
for _module in ("pathlib", "pathlib._local"):  # the latter in Python 3.13
    for _kind in (PurePosixPath, PureWindowsPath):
        _CALLED |= dict.fromkeys(
            (f"{_module}.{_kind.__name__}", f"{_module}.{_kind.__name__.removeprefix('Pure')}"), partial(_path, _kind)
        )
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")

# Classes whose objects are made without arguments and get a state.
_MADE: dict[str, type] = {
    "argparse.Namespace": Namespace,
    "mmengine.logging.history_buffer.HistoryBuffer": HistoryBuffer,
}
_STORAGES = {
    **{name: name.lower() for name in ("BFloat16", "Bool", "Double", "Float", "Half", "Int", "Long", "Short")},
    **dict(Byte="uint8", Char="int8", ComplexDouble="cdouble", ComplexFloat="cfloat", Untyped="uint8"),
}
# Arguments of those functions. None is for classes that they do not use: of an array, and the factories
# of a defaultdict, with Python 2's names.
_NAMED: dict[str, Any] = {
    "mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler": OneCycleParamScheduler,
    "numpy.ndarray": None,
    **{f"builtins.{name}": None for name in ("dict", "float", "int", "list", "long", "str", "tuple", "unicode")},
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **{
        f"{module}.{name}Storage": vars(torch)[dtype]
        for name, dtype in _STORAGES.items()
        for module in ("torch", "torch.storage")
    },
}


def _is_spread(size: Iterable[int], stride: Iterable[int]) -> bool:
    """Whether every element of a view has a place of its own in the storage."""
    extent = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length > 1 and step < extent:
            return False
        extent += step * (length - 1)
    return True


def _attributes(target: Any, state: dict) -> set[str]:
    """Names of the attributes that a file may set."""
    if isinstance(target, Namespace):
        return {name for name in state if isinstance(name, str)}
    if isinstance(target, HistoryBuffer):
        return {"max_length", "_log_history", "_count_history"}
    return {"_metadata"}  # of a module's state dict


_PurePython: Any = pickle._Unpickler  # whose stack its type stubs leave out


class Unpickler(_PurePython):
    """Reader of a checkpoint's pickle.

    It builds on Python's own `pickle._Unpickler`, since the C version does not let a subclass decide
    about calls and states. A checkpoint's pickle is small: tensor data lies outside it.

    Args:
        file: Stream of the pickle.
        storage: Gives the data of a storage by its key in the file, number of elements, their size in
            bytes, and the device it was saved from; raises if the file does not hold as much.
        file_size: Of the whole file in bytes, which bounds the size of its tensors.
        checked: Whether checksums say that the pickle is as it was written. If not, views whose
            elements share places are taken as damage.
    """

    def __init__(self, file: IO[bytes], storage: GetStorage, file_size: int, checked: bool = True) -> None:
        super().__init__(file, encoding="utf-8")
        self._storage, self._checked, self._budget = storage, checked, _GROWTH * file_size
        self._called = {**_CALLED, **dict.fromkeys(_TENSORS, self._tensor)}
        self._globals = {**_NAMED, **_MADE, **self._called}

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a global.

        Raises:
            pickle.UnpicklingError: If the global is not admitted.
        """
        # Python 2's name for builtins, which protocol 2 pickles keep.
        path = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if path not in self._globals:
            raise pickle.UnpicklingError(f"it names {path}, which no checkpoint needs: do not trust it")
        return self._globals[path]

    def persistent_load(self, pid: Any) -> Storage:
        """The storage that a tensor is a view of."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise pickle.UnpicklingError("it refers to something that is not a tensor's storage")
        _, dtype, key, location, count, *view = pid
        kinds = zip((dtype, key, location, count), (torch.dtype, str, str, int), strict=True)
        if not all(isinstance(value, kind) for value, kind in kinds) or count < 0 or view not in ([], [None]):
            raise pickle.UnpicklingError(f"its storage {_name(key)} is not described as torch does")
        return Storage(self._storage(key, count, dtype.itemsize, location), dtype, count)

    def _tensor(self, storage: Storage, offset: int, size: tuple, stride: tuple, *rest: Any) -> torch.Tensor:
        """torch's `_rebuild_tensor_v2` (and its older form) for a view that lies within its storage."""
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage.size):
            raise pickle.UnpicklingError(f"a tensor of shape {tuple(size)} does not lie within its storage")
        if not self._checked and not _is_spread(size, stride):
            raise pickle.UnpicklingError(f"elements of a tensor of shape {tuple(size)} share places: it is damaged")
        self._budget -= math.prod(size) * storage.dtype.itemsize
        if self._budget < 0:
            raise pickle.UnpicklingError(f"its tensors claim more than {_GROWTH} times the size of the file")
        # The rest are requires_grad and hooks, which weights have no use for.
        empty = torch.empty(0, dtype=storage.dtype, device=storage.data.device)
        return empty.set_(storage.data, offset, tuple(size), tuple(stride))

    # Instructions of a pickle, in place of those of pickle._Unpickler.

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        if not any(function is admitted for admitted in self._called.values()):
            raise pickle.UnpicklingError(f"it calls {_name(function)}: do not trust it")
        self.stack[-1] = function(*arguments)

    def load_newobj(self) -> None:
        arguments, kind = self.stack.pop(), self.stack[-1]
        if not any(kind is admitted for admitted in _MADE.values()) or arguments != ():
            raise pickle.UnpicklingError(f"it makes an object of {_name(kind)}: do not trust it")
        self.stack[-1] = kind()

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, np.ndarray):
            target.__setstate__(state)
        elif isinstance(target, np.dtype):  # whose name has said the same
            if state[1] not in ("<", "|", "=") or state[2:5] != (None, None, None):
                raise pickle.UnpicklingError(f"it holds an array of an unusual {target}")
        elif not isinstance(target, Namespace | HistoryBuffer | collections.OrderedDict) or type(state) is not dict:
            raise pickle.UnpicklingError(f"it changes the state of {_name(target)}: do not trust it")
        else:
            # mmengine keeps the statistics in the class: those of a file would replace them for all objects.
            state.pop("statistics_methods", None)
            foreign = state.keys() - _attributes(target, state)
            if foreign:
                raise pickle.UnpicklingError(
                    f"it gives a {type(target).__name__} the attribute {_name(min(foreign))}: do not trust it"
                )
            vars(target).update(state)

    def load_append(self) -> None:
        self._expect(self.stack[-2], list)
        super().load_append()

    def load_appends(self) -> None:
        self._expect(self.metastack[-1][-1], list)
        super().load_appends()

    def load_setitem(self) -> None:
        self._expect(self.stack[-3], dict, collections.OrderedDict)
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._expect(self.metastack[-1][-1], dict, collections.OrderedDict)
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        self._expect(self.metastack[-1][-1], set)
        _check_keys(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        _check_keys(self.stack)
        super().load_frozenset()

    @staticmethod
    def _expect(target: Any, *kinds: type) -> None:
        """Refuse other targets: Python would call the method of that name of any object."""
        if type(target) not in kinds:
            raise pickle.UnpicklingError(f"it adds items to a {type(target).__name__}: do not trust it")

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it uses pickle instructions that torch never writes: do not trust it")

    # pickle.REDUCE is done by load_reduce, and so on.
    dispatch: ClassVar[dict] = {
        **pickle._Unpickler.dispatch,
        **{
            getattr(pickle, name.removeprefix("load_").upper())[0]: method
            for name, method in vars().items()
            if name.startswith("load_")
        },
    }
    for _code in ("INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"):
        dispatch[getattr(pickle, _code)[0]] = _refuse
