"""A pickle reader that runs no code, to be handed to `torch.load` as its `pickle_module`.

torch's own `weights_only` reader refuses the checkpoints that mmengine writes, since they hold
`HistoryBuffer` objects whose methods are pickled through `builtins.getattr`. This one admits those
four methods, and otherwise tensors, numpy arrays and plain containers: a file cannot name anything
else, and cannot change the attributes of a class or function it names.
"""

import collections
import pickle
import types
from collections.abc import Callable
from typing import Any, ClassVar

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


def _empty_array(kind: type, shape: tuple, typecode: bytes) -> np.ndarray:
    """numpy's `_reconstruct` as its own pickles call it; `__setstate__` brings shape and content."""
    return np.empty(0, np.int8)


def _scalar(dtype: np.dtype, data: bytes) -> np.generic:
    return np.frombuffer(data, dtype)[0]


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
    ("builtins", "set"): set,
    ("collections", "Counter"): collections.Counter,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("mmengine.logging.history_buffer", "HistoryBuffer"): HistoryBuffer,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
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

_STATEFUL = (HistoryBuffer, Namespace, collections.OrderedDict, np.ndarray, np.dtype)


class Unpickler(pickle._Unpickler):
    """Reads what `_ADMITTED` names and plain Python values.

    It builds on Python's own `pickle._Unpickler`, since the C one cannot be told which objects may
    be given a state. A checkpoint's pickle is small: tensor data lies outside it.

    Attributes:
        storage_bytes: Bytes that the file holds for the storage of a key. torch trusts the size
            that the pickle claims, and would read or allocate beyond.
    """

    storage_bytes: ClassVar[Callable[[str], int]]
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
        target = self.stack[-2]
        if not isinstance(target, _STATEFUL):
            raise pickle.UnpicklingError(f"it changes the state of {target!r}: do not trust it")
        super().load_build()

    def load_binpersid(self) -> None:
        kind, storage_type, key, _, count, *_ = self.stack[-1]
        if kind != "storage" or not isinstance(count, int) or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something that is not a tensor's storage")
        claimed, there = count * torch.empty(0, dtype=storage_type.dtype).element_size(), self.storage_bytes(key)
        if not 0 <= claimed <= there:
            raise pickle.UnpicklingError(f"it claims {claimed} bytes for storage {key} and holds {there}")
        super().load_binpersid()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BINPERSID[0]] = load_binpersid


def pickle_module(storage_bytes: Callable[[str], int]) -> types.ModuleType:
    """What `torch.load` takes as `pickle_module`, for a file of these storage sizes."""
    module = types.ModuleType("safe_pickle")
    module.Unpickler = type("Unpickler", (Unpickler,), {"storage_bytes": staticmethod(storage_bytes)})
    module.load = lambda file, **kwargs: module.Unpickler(file, **kwargs).load()
    module.UnpicklingError = pickle.UnpicklingError
    return module
