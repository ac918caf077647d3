"""Reads checkpoint files with torch and safetensors. Nothing in a file runs."""

import re
import tarfile
import threading
import zipfile
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from mmengine.runner import CheckpointLoader
from safetensors.torch import load_file
from torch.serialization import add_safe_globals, safe_globals

from .folders import HUB_PREFIX, download_model, find_checkpoint_in
from .known_types import CHECKPOINT_TYPES, SUBSTITUTES
from .published import PUBLISHED, REMOTE_PREFIXES, ensure_downloaded

# mmengine reads its checkpoints by `torch.load`, which would reject the message hub in each of them.
add_safe_globals(CHECKPOINT_TYPES)

_AGAIN = "download or copy it again"
_lock = threading.Lock()  # the substitutes apply to all threads


def load_from_file(filename: str | Path, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    A file of torch 1.6 or newer is mapped into memory: only the tensors that are used are read from the disk.

    Args:
        filename: Path of the file. Its first bytes decide how it is read, not its suffix.
        map_location: See `torch.load`. For safetensors a device, everything else means the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a checkpoint, is damaged, or holds more than weights and known plain values.
    """
    path = Path(filename).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the checkpoint file in it")
    with path.open("rb") as file:
        start = file.read(16)
    is_safetensors, is_archive = start[8:9] == b"{", start[:2] == b"PK"  # a header after its length; a zip archive
    problem = "" if is_safetensors else _check_archive(path) if is_archive else _check_start(path, start)
    if problem:
        raise ValueError(f"cannot read {path} as a checkpoint: {problem}")
    try:
        if is_safetensors:
            device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
            return load_file(path, device=str(device))
        with _lock, safe_globals(SUBSTITUTES):
            return torch.load(path, map_location, weights_only=True, mmap=is_archive)
    except Exception as error:  # a damaged file may raise nearly anything
        raise ValueError(f"cannot read {path} as a checkpoint: {_explain(path, error)}") from error


# mmengine logs a loader by its function's name less "load_from_".
@CheckpointLoader.register_scheme(prefixes=["xcit://", HUB_PREFIX, r"[^:]+\.safetensors$"], force=True)
def load_from_xcit(filename: str, map_location: Any = "cpu") -> Any:
    """Read what mmengine has no reader for: a published file, a model of the Hub, or safetensors."""
    return load_checkpoint(filename, map_location)


def load_checkpoint(name: str | Path, map_location: Any = "cpu") -> Any:
    """Read a checkpoint, after a download if necessary.

    Args:
        name: A path, a URL, a published name with or without `xcit://`, `hf://OWNER/NAME`, or a name with another
            prefix of mmengine's, which mmengine reads.
        map_location: As in `load_from_file`, whose errors are raised too.

    Raises:
        ConnectionError: If the file cannot be downloaded.
    """
    name = str(name)
    if name.startswith(HUB_PREFIX):
        checkpoint = find_checkpoint_in(download_model(name))
        if checkpoint is None:
            raise FileNotFoundError(f"{name} has no checkpoint (*.pth or *.safetensors)")
        return load_from_file(checkpoint, map_location)
    if name.startswith(REMOTE_PREFIXES) or (name in PUBLISHED and not Path(name).exists()):
        return load_from_file(ensure_downloaded(name), map_location)
    if "://" in name:
        return CheckpointLoader.load_checkpoint(name, map_location, logger="silent")
    return load_from_file(name, map_location)


def _check_archive(path: Path) -> str:
    """Return why a zip archive is not a checkpoint, or ''."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = [name.partition("/")[2] for name in archive.namelist()]
    except Exception as error:  # of nearly any kind
        return f"it is truncated or damaged, {_AGAIN} ({error})"
    if "constants.pkl" in records:
        return "it is a TorchScript archive, which holds code: save the module's state_dict() instead"
    return "" if "data.pkl" in records else "it is a zip archive, but torch did not write it (no data.pkl)"


def _check_start(path: Path, start: bytes) -> str:
    """Return why a file that is not an archive is not a checkpoint, or ''."""
    if not start:
        return f"it is empty, {_AGAIN}"
    if start[:1] == b"\x80":  # a pickle, torch's format before 1.6
        return ""
    if start.lstrip()[:1] == b"<":
        return f"it is a web page, probably of a failed download; {_AGAIN}"
    if tarfile.is_tarfile(path):
        return "it is a tar archive: extract it, and give the checkpoint in it"
    return f"it starts with {start!r}, which neither torch nor safetensors writes"


def _explain(path: Path, error: Exception) -> str:
    """Return why torch or safetensors did not read a file, in one line of limited length, since it may quote the file.

    torch ignores the checksums of an archive and stumbles over what is missing or wrong.
    """
    text, fix = str(error), "save its weights alone with the program that wrote it"
    damaged = None
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if isinstance(error, UnpicklingError) and not damaged:
        if named := re.search(r"GLOBAL (\S+)", text):
            return f"it names {named[1]}, which might run code: {fix}"
        cause = _first_sentence(text.partition("WeightsUnpickler error: ")[2] or text)
        return f"it holds more than weights and plain values ({cause}): {fix}"
    what = f"its record {damaged} is damaged" if damaged else "it is truncated or damaged"
    return f"{what}, {_AGAIN} ({_first_sentence(text) or type(error).__name__})"


def _first_sentence(text: str) -> str:
    return re.split(r"\n|(?<=\.) ", text.strip(), maxsplit=1)[0][:300]
