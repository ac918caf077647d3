"""A reader of pickles that runs no code of the file.

It is a stack machine of its own for the opcodes that torch writes, which the standard library's `pickletools` decodes.
A pickle can name only what `pickle_globals` lists, and can only call what has a replacement there. It cannot change a
class, a function or a tensor.

torch's `weights_only` reader is not used because some files harm it: a deeply nested key ends the process, an error
that prints a value of the file may never end, and a call of `bytearray` takes any amount of memory.
`tests/weights/test_hostile_files.py` has such files.
"""

import collections
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pickle import HIGHEST_PROTOCOL
from pickletools import genops
from typing import IO, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .pickle_globals import GLOBALS, Global, Namespace, check_keys, check_type, name_of

GetStorage = Callable[[str, int, int, str], torch.UntypedStorage]

# Largest size of all tensors together, in sizes of the file. Copies that share their data, such as `model` and
# `model_ema`, make it 2. An expanded tensor of a few bytes may claim any size, which a copy of it would take.
# Calls that copy the same container or text again and again count too.
MAX_EXPANSION = 8

# Attributes that a file may set. A Namespace may have any; `_metadata` is of a module's state dict.
_ATTRIBUTES = {HistoryBuffer: {"max_length", "_log_history", "_count_history"}, collections.OrderedDict: {"_metadata"}}

# Opcodes that push their argument, a fixed value or an empty container.
_INTEGERS = ("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_PUSHES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys((*_INTEGERS, "BINFLOAT", *_TEXTS), lambda argument: argument),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: set(),
}


@dataclass(frozen=True, eq=False)
class Storage:
    """The data that tensors are views of."""

    data: torch.UntypedStorage
    dtype: torch.dtype
    count: int


class SafeUnpickler:
    """Reads one pickle of a checkpoint. The data of tensors lie outside of it.

    Args:
        file: Stream of the pickle.
        get_storage: Returns the data of a storage by its key in the file, number of elements, size of an element in
            bytes, and the device it was saved from. Raises if the file holds less.
        file_size: Size of the whole file in bytes, which limits the size of its tensors.
        checked: Whether checksums confirm that the pickle is as it was written. Otherwise a view whose elements
            overlap counts as damage.
    """

    def __init__(self, file: IO[bytes], get_storage: GetStorage, file_size: int, checked: bool = True) -> None:
        self._file, self._get_storage, self._checked = file, get_storage, checked
        self._free_bytes = MAX_EXPANSION * file_size
        types = (Storage, int, tuple, tuple, object, object, object)
        paths = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
        self._globals = GLOBALS | {path: Global(path, self._tensor, types) for path in paths}
        self._stacks: list[list] = [[]]  # the values before the first mark, and those after each mark
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Read the content, up to the end of the pickle in the stream. Damage may raise nearly any exception."""
        for opcode, argument, _ in genops(self._file):
            if opcode.name == "STOP":
                return self._pop()
            if opcode.name in _PUSHES:
                self._push(_PUSHES[opcode.name](argument))
            else:
                self._execute(opcode.name, argument)
        raise ValueError("it has no end")

    def _execute(self, opcode: str, argument: Any) -> None:
        """Execute an opcode that reads or changes the stack."""
        match opcode:
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stacks[-1][-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stacks[-1][-1]
            case "BINGET" | "LONG_BINGET":
                self._push(self._memo[argument])
            case "MARK":
                self._stacks.append([])
            case "TUPLE":
                self._push(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._push(tuple([self._pop() for _ in range(int(opcode[-1]))][::-1]))
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS":
                self._extend(self._pop_to_mark())
            case "SETITEM":
                self._set_items([self._pop(), self._pop()][::-1])
            case "SETITEMS":
                self._set_items(self._pop_to_mark())
            case "ADDITEMS":
                items = self._pop_to_mark()
                check_keys(items, len(self._target(set)))
                self._target(set).update(items)
            case "FROZENSET":
                items = self._pop_to_mark()
                check_keys(items)
                self._push(frozenset(items))
            case "GLOBAL":
                self._push(self._find_global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                self._push(self._find_global(*[self._pop(), self._pop()][::-1]))
            case "BINPERSID":
                self._push(self._storage(self._pop()))
            case "REDUCE":
                arguments, function = self._pop(), self._pop()
                self._push(_call(function, arguments))
                self._spend_on_copies(arguments)
            case "NEWOBJ":
                arguments, kind = self._pop(), self._pop()
                self._push(_new(kind, arguments))
            case "BUILD":
                state = self._pop()
                _set_state(state, target=self._stacks[-1][-1])
                self._spend_on_copies(state if isinstance(state, tuple) else (state,))
            case "FRAME":
                pass
            case "PROTO" if argument <= HIGHEST_PROTOCOL:
                pass
            case _:
                raise ValueError(f"it uses {opcode}, a pickle instruction that torch never writes: do not trust it")

    def _push(self, value: Any) -> None:
        self._stacks[-1].append(value)

    def _pop(self) -> Any:
        return self._stacks[-1].pop()

    def _pop_to_mark(self) -> list:
        return self._stacks.pop()

    def _target(self, *kinds: type) -> Any:
        """Return the container on top of the stack. Other objects could have a method of the same name."""
        target = self._stacks[-1][-1]
        if type(target) not in kinds:
            raise ValueError(f"it adds items to {name_of(target)}: do not trust it")
        return target

    def _extend(self, items: list) -> None:
        self._target(list).extend(items)

    def _set_items(self, items: list) -> None:
        target = self._target(dict, collections.OrderedDict)
        check_keys(items[::2], len(target))
        target.update(zip(items[::2], items[1::2], strict=True))

    def _find_global(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError(f"it names {name_of(name)} of {name_of(module)}: do not trust it")
        # Protocol 2 keeps Python 2's name of the module.
        path = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if path not in self._globals:
            raise ValueError(f"it names {path}, which no checkpoint needs: do not trust it")
        return self._globals[path]

    def _storage(self, description: Any) -> Storage:
        """Return the storage that a tensor is a view of, from the tuple in which torch describes it."""
        check_type(description, tuple)
        kind, dtype, key, location, count, *view = description
        for value, expected in zip((kind, dtype, key, location, count), (str, torch.dtype, str, str, int), strict=True):
            check_type(value, expected)
        if kind != "storage" or count < 0 or any(part is not None for part in view):
            raise ValueError("it does not describe a storage as torch does")
        return Storage(self._get_storage(key, count, dtype.itemsize, location), dtype, count)

    def _tensor(self, storage: Storage, offset: int, size: tuple, stride: tuple, *options: Any) -> torch.Tensor:
        """Make a tensor in place of torch's `_rebuild_tensor_v2`; its options, such as hooks, are left out."""
        for number in (*size, *stride):
            check_type(number, int)  # numbers of numpy would overflow in the checks below
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage.count):
            raise ValueError(f"a tensor of shape {size} does not lie within its storage")
        if not self._checked and _overlaps(size, stride):
            raise ValueError(f"elements of a tensor of shape {size} share places: it is damaged")
        self._spend(math.prod(size) * storage.dtype.itemsize)
        empty = torch.empty(0, dtype=storage.dtype, device=storage.data.device)
        return empty.set_(storage.data, offset, size, stride)

    def _spend_on_copies(self, values: tuple) -> None:
        texts = sum(len(value) for value in values if isinstance(value, str | bytes))
        self._spend(texts + 8 * sum(len(value) for value in values if isinstance(value, list | tuple | dict)))

    def _spend(self, size: int) -> None:
        self._free_bytes -= size
        if size and self._free_bytes < 0:
            raise ValueError(f"its tensors and copies claim more than {MAX_EXPANSION} times the size of the file")


def _overlaps(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements of a view may have the same place in the storage."""
    extent = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length > 1 and step < extent:
            return True
        extent += step * (length - 1)
    return False


def _call(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Global) or function.call is None:
        raise ValueError(f"it calls {name_of(function)}: do not trust it")
    check_type(arguments, tuple)
    if len(arguments) > len(function.types):
        raise ValueError(f"it calls {function.path} with {len(arguments)} arguments: do not trust it")
    for value, kind in zip(arguments, function.types, strict=False):
        check_type(value, kind)
    return function.call(*arguments)


def _new(kind: Any, arguments: Any) -> Any:
    check_type(arguments, tuple)
    if not isinstance(kind, Global) or kind.new is None or arguments:
        raise ValueError(f"it makes an object of {name_of(kind)}: do not trust it")
    return kind.new()


def _set_state(state: Any, target: Any) -> None:
    """Give an array its values, or an object of a known class its attributes."""
    if isinstance(target, np.ndarray):
        target.__setstate__(state)
    elif isinstance(target, np.dtype):  # complete by its name
        check_type(state, tuple)
        check_type(state[1], str)
        if state[1] not in ("<", "|", "=") or any(part is not None for part in state[2:5]):
            raise ValueError(f"it holds an array of an unusual {target}")
    elif type(target) not in (Namespace, *_ATTRIBUTES) or type(state) is not dict:
        raise ValueError(f"it changes the state of {name_of(target)}: do not trust it")
    else:
        # mmengine keeps the statistics in the class: those of a file would replace them for all objects.
        state.pop("statistics_methods", None)
        own = _ATTRIBUTES.get(type(target)) or {name for name in state if isinstance(name, str)}
        unknown = state.keys() - own
        if unknown:
            name = name_of(min(unknown))
            raise ValueError(f"it gives a {type(target).__name__} the attribute {name}: do not trust it")
        vars(target).update(state)
