"""`pickle` for `torch.load` before 2.6: it builds tensors, plain values and the types of `allowed`.

There, `weights_only=True` refuses the types of `allowed` and runs TorchScript archives
(CVE-2025-32434). This unpickler imports nothing but encodings. It calls only functions on its own
list, which a file finds by their names.
"""

import codecs
import pickle
import sys
import tarfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..utils.compat import TENSOR_FUNCTIONS, PythonUnpickler, is_torchscript, python3_name
from .allowed import CHECKPOINT_TYPES, SUBSTITUTES

# Functions, types and data types by their names in a file.
_NAMES: dict[str, Any] = {
    "_codecs.encode": codecs.encode,  # of bytes, which protocol 2 writes as text
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
}
for _entry in (
    *TENSOR_FUNCTIONS,
    *(OrderedDict, Counter, torch.Size, torch.device, set, bytearray, complex),
    *CHECKPOINT_TYPES,
    *SUBSTITUTES,
):
    if isinstance(_entry, tuple):
        _NAMES[_entry[1]] = _entry[0]
    else:
        _NAMES[f"{_entry.__module__}.{_entry.__qualname__}"] = _entry
_CALLABLE = {id(value) for value in _NAMES.values()}
# `torch.save` writes these operations of protocol 2, and torch 2.6 reads no others.
_OPERATIONS = """
    PROTO STOP MARK GLOBAL BINGET LONG_BINGET BINPUT LONG_BINPUT NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE BINSTRING SHORT_BINSTRING
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
"""
_CODES = [getattr(pickle, name)[0] for name in _OPERATIONS.split()]


class Unpickler(PythonUnpickler):
    """Reads the operations in `_OPERATIONS` and the names in `_NAMES`, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:  # it has the names of Python 2
            module, name = python3_name(module, name)
        if f"{module}.{name}" not in _NAMES:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed")
        return _NAMES[f"{module}.{name}"]

    def load_reduce(self) -> None:
        function = self.stack[-2]
        _check(id(function) in _CALLABLE, f"a call of {type(function)}")
        super().load_reduce()

    def load_newobj(self) -> None:
        type_ = self.stack[-2]
        _check(isinstance(type_, type) and id(type_) in _CALLABLE, f"an object of {type(type_)}")
        super().load_newobj()

    def load_build(self) -> None:
        # `pickle` would call the `__setstate__` of the instance, where the file can put its own.
        state = self.stack.pop()
        instance = self.stack[-1]
        type_ = type(instance)
        _check(id(type_) in _CALLABLE, f"a state of {type_}")
        if hasattr(type_, "__setstate__"):
            type_.__setstate__(instance, state)
        else:
            vars(instance).update(state)

    def load_binpersid(self) -> None:
        # For a 'module' torch would compare source code, and could write a patch.
        _check(self.stack[-1][0] == "storage", "an object outside of the file")
        super().load_binpersid()

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: PythonUnpickler.dispatch[code] for code in _CODES},
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.BINPERSID[0]: load_binpersid,
    }


def _check(is_allowed: bool, operation: str) -> None:
    if not is_allowed:
        raise pickle.UnpicklingError(f"{operation} is not allowed")


def load(file: Any, **options: Any) -> Any:
    """Read an open file as `pickle.load` does."""
    return Unpickler(file, **options).load()


def load_file(path: Path, map_location: Any, is_zip: bool) -> Any:
    """Read a file of `torch.save`. From a zip archive only the tensors that are used are read.

    Raises:
        UnpicklingError: If the file holds other objects, or is an archive that torch would run or
            unpack.
    """
    if is_zip:
        _check(not is_torchscript(path), "a TorchScript archive")
    else:
        _check(not tarfile.is_tarfile(path), "a tar archive, as of torch 0.1,")
    own = sys.modules[__name__]
    return torch.load(str(path), map_location, own, weights_only=False, mmap=is_zip)
