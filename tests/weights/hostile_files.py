"""Bytes of weights files, among them some that a careless reader would obey."""

import argparse
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from xcit_mm.weights.pickle_globals import GLOBALS, Global

# The start of a file in torch's older format: a number, a version and the machine.
_LEGACY_START = b"".join(pickle.dumps(value, protocol=2) for value in (MAGIC_NUMBER, PROTOCOL_VERSION, {}))


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Callable, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple:
        return self.call


class ByName:
    """A pickle module that writes modules as calls of `__import__`, as an attacker's bytes may."""

    class Pickler(pickle._Pickler):
        def reducer_override(self, obj):
            return (__import__, (obj.__name__,)) if isinstance(obj, type(os)) else NotImplemented


def saved(content: object, zipped: bool = True, **options: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=zipped, **options)
    return stream.getvalue()


def legacy(opcodes: bytes) -> bytes:
    """A file in the older format with these pickle instructions of protocol 2."""
    return _LEGACY_START + b"\x80\x02" + opcodes


def archive(records: dict[str, bytes]) -> bytes:
    """A zip archive as torch writes it, without compression, checksums correct."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
        for name, data in records.items():
            file.writestr(name, data)
    return stream.getvalue()


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def claiming(count: int) -> dict[str, bytes]:
    """Records of a checkpoint with 4936 bytes of data, whose pickle claims a storage of `count` float32 values."""
    before, after = b"M" + struct.pack("<H", 1234), b"J" + struct.pack("<i", count)
    return {name: data.replace(before, after) for name, data in records_of(saved(dict(w=torch.zeros(1234)))).items()}


def with_record(record: str, data: bytes, claim: int | None = None) -> bytes:
    """A checkpoint with one more record; with `claim`, its tensor's record claims so many bytes."""
    stream = io.BytesIO(archive({f"a/{name.partition('/')[2]}": part for name, part in claiming(1234).items()}))
    with zipfile.ZipFile(stream, "a") as file:
        file.writestr(record, data)
        if claim is not None:
            file.getinfo("a/data/0").file_size = claim
    return stream.getvalue()


def tensor_with(storage: object, *view: object) -> bytes:
    """An archive with a tensor that is described by these values; the storage "STORAGE" has 4 values of float32."""
    stream = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> tuple | None:
            return ("storage", torch.FloatStorage, "0", "cpu", 4) if obj == "STORAGE" else None

    Pickler(stream, 2).dump(dict(w=Runs(torch._utils._rebuild_tensor_v2, storage, *view, False, {})))
    return archive({"a/data.pkl": stream.getvalue(), "a/data/0": bytes(16)})


def legacy_with_storages(keys: bytes) -> bytes:
    """A file of two tensors in the older format, with these pickle instructions as the list of its storages."""
    data = saved(dict(a=torch.ones(3), b=torch.ones(4)), zipped=False)
    end = data.rindex(b"\x80\x02")
    stream = io.BytesIO(data[end:])
    pickle.load(stream)
    return data[:end] + b"\x80\x02" + keys + data[end + stream.tell() :]


def doubled(times: int = 60) -> list:
    """A list whose text has 2**times brackets."""
    content: list = []
    for _ in range(times):
        content = [content, content]
    return content


def opcodes(content: object) -> bytes:
    """The pickle instructions of protocol 2 that leave a value on the stack."""
    return pickle.dumps(content, protocol=2)[2:-1]


def endless_files() -> Iterator[bytes]:
    """Files whose values Python would iterate over, compare, copy or quote without end.

    The values are lists of 2**60 values and arrays of 10**11 elements without a byte. Each is an argument of every
    function that a pickle may name, a state of every object, and takes the place of every number and text.
    """
    strings = np.empty(0, "S1")
    strings.__setstate__((1, (10**11,), np.dtype("S0"), False, b""))
    functions = [path for path, kind in GLOBALS.items() if isinstance(kind, Global) and kind.call]
    dtype, storage = opcodes(np.dtype("S0")), opcodes(("storage", torch.float32, "0", "cpu", 4))
    for value in map(opcodes, (doubled(), (doubled(),), strings, np.empty((10**11, 0)), [strings])):
        yield b"\x80\x02" + value + b"."
        for arguments in (value, value + b"\x85", value + value + b"\x86", dtype + value + b"\x86"):
            for path in functions:
                module, _, name = path.rpartition(".")
                yield legacy(b"c%s\n%s\n" % (module.encode(), name.encode()) + arguments + b"R.")
        for state in (value, b"(" + 5 * value + b"t", b"}X\x01\x00\x00\x00a" + value + b"s"):
            for target in (np.zeros(1), np.dtype("f8"), argparse.Namespace(a=1), HistoryBuffer, OrderedDict()):
                yield legacy(opcodes(target) + state + b"b.")
        for place in range(5):
            parts = [opcodes(part) for part in ("storage", torch.float32, "0", "cpu", 4)]
            yield legacy(b"(" + b"".join([*parts[:place], value, *parts[place + 1 :]]) + b"tQ.")
        for place in range(4):
            parts = [storage + b"Q", opcodes(0), opcodes((4,)), opcodes((1,))]
            view = b"(" + b"".join([*parts[:place], value, *parts[place + 1 :]]) + b"tR."
            yield legacy(b"ctorch._utils\n_rebuild_tensor\n" + view)


def changed_statistics() -> HistoryBuffer:
    """An object whose state replaces the statistics of its class."""
    buffer = HistoryBuffer()
    buffer._statistics_methods = {"mean": HistoryBuffer.max}
    return buffer


class _Overwrites(nn.Module):
    """TorchScript runs its __setstate__ on loading."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path, self.training = state
        torch.save(torch.zeros(1), self.path)

    def forward(self, x: Tensor) -> Tensor:
        return x


def torchscript(path: Path) -> bytes:
    """An archive, uncompressed, which overwrites a file when torch.jit.load reads it."""
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(_Overwrites(str(path))), stream)
    return archive(records_of(stream.getvalue()))


def tar(path: Path) -> bytes:
    """An archive that begins like a pickle; unpacked, it changes the mode of a file through a hard link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as file:
        file.addfile(tarfile.TarInfo("\udc80\x02"))
        link = tarfile.TarInfo("storages")
        link.type, link.linkname, link.mode = tarfile.LNKTYPE, str(path), 0o777
        file.addfile(link)
    return stream.getvalue()
