"""Readers of torch's two file formats, in place of `torch.load`.

`torch.load` ignores the checksums of an archive, and fills a tensor whose data an old file lacks with whatever is in
memory. A check before it would not help: an archive can show two readers different contents. These readers use the
content that they have checked.
"""

import mmap
import struct
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION, default_restore_location

from .unpickler import GetStorage, SafeUnpickler

_DAMAGED = "download or copy it again"


def read_zip(path: Path, map_location: Any) -> Any:
    """Read a file in torch's format since 1.6, a zip archive with a checksum of every record.

    A damaged file may raise nearly any exception.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        records = _records(archive, size)

        def read(name: str, default: bytes = b"") -> bytes:
            if name not in records:
                return default
            try:
                return archive.read(records[name])
            except zipfile.BadZipFile as error:
                raise ValueError(f"its record {name} is damaged ({error}): {_DAMAGED}") from error

        byteorder = read("byteorder", b"little").decode()
        if byteorder != sys.byteorder:
            raise ValueError(f"its byte order is {byteorder!r}, this machine's {sys.byteorder!r}")
        get_storage = _storage_cache(lambda key: read(f"data/{key}"), map_location)
        return SafeUnpickler(BytesIO(read("data.pkl")), get_storage, size).load()


def _records(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """List the records by their name within the archive's only folder; together they are no larger than the file."""
    infos = archive.infolist()
    folder = infos[0].filename.partition("/")[0] + "/" if infos else ""
    records = {info.filename.removeprefix(folder): info for info in infos}
    if "constants.pkl" in records or any(name.startswith("code/") for name in records):
        raise ValueError("it is a TorchScript archive, which holds code: save the module's state_dict() instead")
    if "data.pkl" not in records:
        raise ValueError("it is a zip archive, but torch did not write it (no data.pkl)")
    if len(records) < len(infos) or not all(info.filename.startswith(folder) for info in infos):
        raise ValueError("it holds a record twice or in a second folder, which torch never writes: do not trust it")
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        raise ValueError("its records are compressed, which torch never does")
    if sum(info.file_size for info in infos) > size:
        raise ValueError(f"its records claim more bytes than the file has: {_DAMAGED}")
    return records


def place(tensor: torch.Tensor, map_location: Any) -> torch.Tensor:
    """Move a tensor from the CPU to where `torch.load` would put it with this `map_location`."""
    data = _restore(tensor.untyped_storage(), "cpu", map_location)
    empty = torch.empty(0, dtype=tensor.dtype, device=data.device)
    return empty.set_(data, tensor.storage_offset(), tensor.shape, tensor.stride())


def _restore(storage: torch.UntypedStorage, location: str, map_location: Any) -> torch.UntypedStorage:
    """Move a storage that was saved from a device to where `map_location` sends it."""
    if isinstance(map_location, str | torch.device):
        return default_restore_location(storage, str(map_location))
    if isinstance(map_location, dict):
        return default_restore_location(storage, map_location.get(location, location))
    moved = None if map_location is None else map_location(storage, location)
    return default_restore_location(storage, location) if moved is None else moved


def _storage_cache(read: Callable[[str], bytes], map_location: Any) -> GetStorage:
    """Make a function that reads each storage once and moves it to its device."""
    storages: dict[str, torch.UntypedStorage] = {}

    def get_storage(key: str, count: int, itemsize: int, location: str) -> torch.UntypedStorage:
        if key not in storages:
            data = torch.tensor(np.frombuffer(read(key), np.uint8))  # a copy, aligned
            storages[key] = _restore(data.untyped_storage(), location, map_location)
        size = storages[key].nbytes()
        if count * itemsize > size:
            raise ValueError(f"it claims {count * itemsize} bytes for storage {key} and holds {size}")
        return storages[key]

    return get_storage


def read_legacy(path: Path, map_location: Any) -> Any:
    """Read a file in torch's format before 1.6: several pickles, then the data of all storages.

    The format has no checksums, so that a changed number goes unnoticed. A damaged file may raise nearly any exception.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        stream: Any = mapped
        for name, expected in (("magic number", MAGIC_NUMBER), ("protocol version", PROTOCOL_VERSION)):
            if not _next_pickle_is(stream, expected):
                raise ValueError(f"it begins like a pickle, but torch did not write it (wrong {name})")
        _read_plain_pickle(stream)  # about the machine that wrote it
        start = stream.tell()
        claims: dict[str, tuple[int, int]] = {}

        def claim(key: str, count: int, itemsize: int, location: str) -> torch.UntypedStorage:
            if claims.setdefault(key, (count, itemsize)) != (count, itemsize):
                raise ValueError(f"it describes storage {key} in two ways")
            return torch.UntypedStorage(count * itemsize, device="meta")

        # The content comes before the data of its storages: a first reading, without data, finds their sizes.
        SafeUnpickler(stream, claim, len(stream), checked=False).load()
        places = _find_storages(stream, claims)
        stream.seek(start)
        get_storage = _storage_cache(lambda key: stream[places[key]], map_location)
        return SafeUnpickler(stream, get_storage, len(stream), checked=False).load()


def _next_pickle_is(stream: Any, expected: int) -> bool:
    try:
        number = _read_plain_pickle(stream)
        return type(number) is int and number == expected
    except Exception:  # another kind of file may begin with the same byte
        return False


def _read_plain_pickle(stream: Any) -> Any:
    """Read a pickle that holds no tensors."""

    def get_storage(key: str, *_: Any) -> torch.UntypedStorage:
        raise ValueError(f"it refers to storage {key} before its tensors")

    return SafeUnpickler(stream, get_storage, file_size=0).load()


def _find_storages(stream: mmap.mmap, claims: dict[str, tuple[int, int]]) -> dict[str, slice]:
    """Find the bytes of each storage in the file. The number of its elements precedes them."""
    keys = _read_plain_pickle(stream)
    if type(keys) is not list or any(type(key) is not str for key in keys) or sorted(keys) != sorted(claims):
        raise ValueError("it lacks the data of some tensors")
    places, position = {}, stream.tell()
    for key in keys:
        count, itemsize = claims[key]
        begin = position + 8
        position = begin + count * itemsize
        if position > len(stream):
            raise ValueError(f"it lacks the data of some tensors: {_DAMAGED}")
        if struct.unpack_from("<q", stream, begin - 8) != (count,):
            raise ValueError(f"it holds another number of elements for storage {key} than it says: {_DAMAGED}")
        places[key] = slice(begin, position)
    return places
