"""torch's two file formats, read here and not by `torch.load`.

`torch.load` ignores the checksums of an archive, and fills a tensor whose data an old file lacks with
whatever is in memory. A check before it would not help: an archive can show two readers different
contents. This reader uses the content that it has checked.
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
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION, _get_restore_location

from .safe_pickle import GetStorage, Unpickler

__all__ = ["place", "read_legacy", "read_zip"]

_DAMAGED = "download or copy it again"


def read_zip(path: Path, map_location: Any) -> Any:
    """Content of a file in torch's format since 1.6, a zip archive with a checksum of every record.

    Args:
        path: The file.
        map_location: As in `torch.load`.

    Raises:
        ValueError: If torch's `save` has not written it so, or it is damaged.
        Exception: Nearly any other, if it is damaged.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        records = _records(archive, size)

        def read(name: str, missing: bytes = b"") -> bytes:
            if name not in records:
                return missing
            try:
                return archive.read(records[name])
            except zipfile.BadZipFile as error:
                raise ValueError(f"its record {name} is damaged ({error}): {_DAMAGED}") from error

        byteorder = read("byteorder", b"little").decode()
        if byteorder != sys.byteorder:
            raise ValueError(f"its byte order is {byteorder!r}, this machine's {sys.byteorder!r}")
        storages = _storages(lambda key: read(f"data/{key}"), map_location)
        return Unpickler(BytesIO(read("data.pkl")), storages, size).load()


def _records(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Records by their name within the archive's only folder, together no larger than the file."""
    found = archive.infolist()
    folder = found[0].filename.partition("/")[0] + "/" if found else ""
    records = {record.filename.removeprefix(folder): record for record in found}
    if "constants.pkl" in records or any(name.startswith("code/") for name in records):
        raise ValueError("it is a TorchScript archive, which holds code: save the module's state_dict() instead")
    if "data.pkl" not in records:
        raise ValueError("it is a zip archive, but torch did not write it (no data.pkl)")
    if len(records) < len(found) or not all(record.filename.startswith(folder) for record in found):
        raise ValueError("it holds a record twice or in a second folder, which torch never writes: do not trust it")
    if any(record.compress_type != zipfile.ZIP_STORED for record in found):
        raise ValueError("its records are compressed, which torch never does")
    if sum(record.file_size for record in found) > size:
        raise ValueError(f"its records claim more bytes than the file has: {_DAMAGED}")
    return records


def place(tensor: torch.Tensor, map_location: Any) -> torch.Tensor:
    """A tensor of the CPU, moved to where `torch.load` would put it with this `map_location`."""
    data = _get_restore_location(map_location)(tensor.untyped_storage(), "cpu")
    empty = torch.empty(0, dtype=tensor.dtype, device=data.device)
    return empty.set_(data, tensor.storage_offset(), tensor.shape, tensor.stride())


def _storages(data_of: Callable[[str], bytes], map_location: Any) -> GetStorage:
    """Storages by key, each read once and brought to its device."""
    restore, found = _get_restore_location(map_location), {}

    def storage(key: str, count: int, itemsize: int, location: str) -> torch.UntypedStorage:
        if key not in found:
            data = torch.tensor(np.frombuffer(data_of(key), np.uint8))  # a copy, aligned
            found[key] = restore(data.untyped_storage(), location)
        if count * itemsize > found[key].nbytes():
            raise ValueError(f"it claims {count * itemsize} bytes for storage {key} and holds {found[key].nbytes()}")
        return found[key]

    return storage


def read_legacy(path: Path, map_location: Any) -> Any:
    """Content of a file in torch's format before 1.6: a row of pickles, then the data of all storages.

    It has no checksums: a changed number goes unnoticed.

    Args:
        path: The file.
        map_location: As in `torch.load`.

    Raises:
        ValueError: If it is another kind of file, or not all there.
        Exception: Nearly any other, if it is damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        stream: Any = mapped
        for name, expected in (("magic number", MAGIC_NUMBER), ("protocol version", PROTOCOL_VERSION)):
            if not _holds(stream, expected):
                raise ValueError(f"it begins like a pickle, but torch did not write it (wrong {name})")
        _unpickle(stream)  # about the machine that wrote it
        start = stream.tell()
        claims: dict[str, tuple[int, int]] = {}

        def claim(key: str, count: int, itemsize: int, location: str) -> torch.UntypedStorage:
            if claims.setdefault(key, (count, itemsize)) != (count, itemsize):
                raise ValueError(f"it describes storage {key} in two ways")
            return torch.UntypedStorage(count * itemsize, device="meta")

        # The content comes before the data of its storages: a first reading, without them, finds their sizes.
        Unpickler(stream, claim, len(stream), checked=False).load()
        places = _places(stream, claims)
        stream.seek(start)
        storages = _storages(lambda key: stream[places[key]], map_location)
        return Unpickler(stream, storages, len(stream), checked=False).load()


def _holds(stream: Any, expected: int) -> bool:
    try:
        return _unpickle(stream) == expected
    except Exception:  # other kinds of files that begin with such a byte
        return False


def _unpickle(stream: Any) -> Any:
    """Content of a pickle that holds no tensors."""

    def storage(key: str, *_: Any) -> torch.UntypedStorage:
        raise ValueError(f"it refers to storage {key} where no tensors are")

    return Unpickler(stream, storage, 0).load()


def _places(stream: mmap.mmap, claims: dict[str, tuple[int, int]]) -> dict[str, slice]:
    """Slices of the file that hold the data of the storages; the number of elements precedes each."""
    keys = _unpickle(stream)
    if not isinstance(keys, list) or len(keys) != len(claims) or set(keys) != claims.keys():
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
