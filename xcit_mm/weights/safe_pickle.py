"""A pickle reader that runs no code, to be handed to `torch.load` as its `pickle_module`.

torch's own `weights_only` reader refuses the checkpoints that mmengine writes, since they hold
`HistoryBuffer` objects whose methods are pickled through `builtins.getattr`. This one admits those
four methods, and otherwise tensors, numpy arrays and plain containers: a file cannot name anything
else, and cannot change the attributes of a class or function it names.
"""

import collections
import pickle
import types
from collections.abc import Callable, Iterable
from typing import IO, Any, ClassVar

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

__all__ = ["Namespace", "Unpickler", "pickle_module"]


class Namespace:
    """Inert stand-in for `argparse.Namespace`, which the authors' training files hold."""


def _history_method(owner: type, name: str) -> Callable:
    """What a file gets for `builtins.getattr`: the statistics of `HistoryBuffer`, nothing else."""
    if owner is not HistoryBuffer or name not in ("min", "max", "mean", "current"):
        raise pickle.UnpicklingError(f"the file asks for attribute {name!r} of {owner!r}: it is not a plain checkpoint")
    return getattr(owner, name)


def _empty_array(kind: object, shape: tuple, typecode: bytes) -> np.ndarray:
    """numpy's `_reconstruct` as its own pickles call it; `__setstate__` brings shape and content."""
    return np.empty(0, np.int8)


def _dtype(name: str, *flags: bool) -> np.dtype:
    """A dtype of numbers or bytes; one of objects would make pointers of a file's bytes."""
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


def _check_keys(keys: Iterable) -> None:
    """Only plain keys: hashing a deeply nested one would overflow the interpreter's stack."""
    for key in keys:
        if not isinstance(key, str | int | float | None):
            raise pickle.UnpicklingError(f"it has a key of type {type(key).__name__}: no checkpoint has")


def _rebuild_tensor(storage: Any, offset: int, size: tuple, stride: tuple, *rest: Any) -> torch.Tensor:
    """torch's `_rebuild_tensor_v2` (and its older form) for a view that lies within its storage."""
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage._size()):
        raise pickle.UnpicklingError(f"a tensor of shape {tuple(size)} does not lie within its storage")
    # The rest are requires_grad and hooks, which weights have no use for.
    return torch._utils._rebuild_tensor(storage, offset, size, stride)


def _rebuild_parameter(data: torch.Tensor, *rest: Any) -> torch.Tensor:
    return data


_ADMITTED: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Namespace,
    ("builtins", "getattr"): _history_method,
    ("collections", "Counter"): _counter,
    ("collections", "OrderedDict"): _ordered_dict,
    ("mmengine.logging.history_buffer", "HistoryBuffer"): HistoryBuffer,
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): None,  # an argument of _empty_array, which needs no class
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    # How Python 2-compatible pickles spell bytes.
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
}
for _package in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _ADMITTED[_package, "_reconstruct"] = _empty_array
    _ADMITTED[_package, "scalar"] = _scalar

_STATEFUL = (HistoryBuffer, Namespace, collections.OrderedDict, np.ndarray)


_PurePython: Any = pickle._Unpickler  # whose stack its type stubs leave out


class Unpickler(_PurePython):
    """Reads what `_ADMITTED` names and plain Python values.

    It builds on Python's own `pickle._Unpickler`, since the C one cannot be told which objects may
    be given a state. A checkpoint's pickle is small: tensor data lies outside it.

    Attributes:
        storage_bytes: Bytes that the file holds for the storage of a key. torch trusts the size
            that the pickle claims, and would read or allocate beyond.
        storages: Keys of the storages that the pickle refers to.
    """

    storage_bytes: "ClassVar[staticmethod[[str], int]]"
    storages: ClassVar[set[str]]
    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a global.

        Raises:
            pickle.UnpicklingError: If the global is not admitted.
        """
        # Python 2's name for builtins, which protocol 2 pickles keep.
        module = "builtins" if module == "__builtin__" else module
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs: do not trust it")
        return _ADMITTED[module, name]

    def load_build(self) -> None:
        target, state = self.stack[-2:]
        if isinstance(target, np.dtype):
            if state[1] not in ("<", "|", "=") or state[2:5] != (None, None, None):
                raise pickle.UnpicklingError(f"it holds an array of an unusual dtype {state!r}")
            self.stack.pop()  # the state says what the name has said
            return
        if not isinstance(target, _STATEFUL):
            raise pickle.UnpicklingError(f"it changes the state of {target!r}: do not trust it")
        super().load_build()

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_set(self) -> None:
        raise pickle.UnpicklingError("it holds a set: no checkpoint does")

    def load_binpersid(self) -> None:
        kind, storage_type, key, _, count, *_ = self.stack[-1]
        if kind != "storage" or not isinstance(count, int) or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something that is not a tensor's storage")
        claimed, there = count * torch.empty(0, dtype=storage_type.dtype).element_size(), self.storage_bytes(key)
        if not 0 <= claimed <= there:
            raise pickle.UnpicklingError(f"it claims {claimed} bytes for storage {key} and holds {there}")
        self.storages.add(key)
        super().load_binpersid()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.EMPTY_SET[0]] = dispatch[pickle.FROZENSET[0]] = load_set
    dispatch[pickle.BINPERSID[0]] = load_binpersid


def pickle_module(storage_bytes: Callable[[str], int]) -> types.ModuleType:
    """What `torch.load` takes as `pickle_module`, for a file of these storage sizes.

    Its `storages` are then the keys that the file refers to, its `loaded` what came beside the content.
    """
    module: Any = types.ModuleType("safe_pickle")
    module.storages, module.loaded = set(), []
    attributes = {"storage_bytes": staticmethod(storage_bytes), "storages": module.storages}
    module.Unpickler = type("Unpickler", (Unpickler,), attributes)

    def load(file: IO[bytes], **kwargs: Any) -> Any:
        module.loaded.append(module.Unpickler(file, **kwargs).load())
        return module.loaded[-1]

    module.load = load
    module.UnpicklingError = pickle.UnpicklingError
    return module
