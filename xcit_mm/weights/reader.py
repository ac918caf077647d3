"""Reading of checkpoint files, which runs nothing in them; every way into the program uses it."""

from pathlib import Path
from typing import Any

import torch
from mmengine.runner import CheckpointLoader

from .published import fetch
from .torch_files import place, read_legacy, read_zip

__all__ = ["load_checkpoint", "load_from_file"]

# Entries with the text of a config, of mmengine's runner, its inferencers and older checkpoints of its libraries.
_CONFIGS = (
    ("meta", "cfg"),
    ("meta", "config"),
    ("message_hub", "runtime_info", "cfg"),
    ("message_hub", "runtime_info", "config"),
)


# mmengine logs a loader by its function's name less "load_from_".
@CheckpointLoader.register_scheme(prefixes="", force=True)
def load_from_file(filename: str, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    It takes mmengine's place as the reader of local files, for `init_cfg`, `load_from`, resuming
    and testing alike. Checkpoints that training wrote can so be read where `torch.load` refuses them
    (torch >= 2.6). The text of a config in them is left out: mmengine would run it.

    Args:
        filename: Path of the file, whose kind is seen from its first bytes, not from its name.
        map_location: As in `torch.load`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a checkpoint, damaged, or holds more than weights and plain values.
    """
    path = Path(filename).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the checkpoint file in it")
    with path.open("rb") as file:
        start = file.read(16)
    if start[8:9] == b"{":  # after the header's length, which may be any bytes
        read = _read_safetensors
    elif start[:2] == b"PK":
        read = read_zip
    elif start[:1] == b"\x80":
        read = read_legacy
    else:
        raise ValueError(f"{path} is not a checkpoint: {_what_it_is(start)}")
    try:
        return _without_functions(_without_configs(read(path, map_location)))
    except Exception as error:  # a damaged file makes a reader raise nearly anything
        raise ValueError(f"cannot read {path} as a checkpoint: {_first_line(error)}") from error


@CheckpointLoader.register_scheme(prefixes="xcit://")
def load_from_xcit(filename: str, map_location: Any = "cpu") -> Any:
    """Read `xcit://NAME`, a published file, downloaded if need be."""
    return load_from_file(str(fetch(filename)), map_location)


@CheckpointLoader.register_scheme(prefixes=["http://", "https://"], force=True)
def load_from_url(filename: str, map_location: Any = "cpu") -> Any:
    """Read a file from the web, downloaded if need be."""
    return load_from_file(str(fetch(filename)), map_location)


def load_checkpoint(name: str) -> Any:
    """Read a checkpoint to the CPU, without a line in the log.

    Args:
        name: A path, a URL, `xcit://NAME`, or another name that mmengine can read.

    Raises:
        FileNotFoundError, ConnectionError: If there is no such checkpoint.
        ValueError: As `load_from_file`.
    """
    return CheckpointLoader.load_checkpoint(name, map_location="cpu", logger="silent")


def _without_configs(content: Any) -> Any:
    """The content without the text of a config, which mmengine runs as Python on resuming and inferring."""
    for *parents, name in _CONFIGS:
        part = content
        for parent in parents:
            part = part.get(parent) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(name, None)
    return content


def _without_functions(content: Any) -> Any:
    """The content without OneCycleLR's function, of which only the name was read: a new scheduler has its own."""
    schedulers = content.get("param_schedulers") if isinstance(content, dict) else None
    # A list of states, or a dict of such lists where there are several optimizers.
    for states in schedulers.values() if isinstance(schedulers, dict) else [schedulers]:
        for state in states if isinstance(states, list) else ():
            if isinstance(state, dict):
                state.pop("anneal_func", None)
    return content


def _read_safetensors(path: Path, map_location: Any) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise ValueError("reading it needs safetensors: pip install safetensors") from None
    return {key: place(value, map_location) for key, value in load_file(path).items()}


def _what_it_is(start: bytes) -> str:
    if not start:
        return "it is empty; download or copy it again"
    if start.lstrip()[:1] == b"<":
        return "it is a web page, probably of a failed download; download it again"
    return f"it starts with {start!r}, which neither torch nor safetensors writes"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [type(error).__name__]
    return text[0] if isinstance(error, ValueError | OSError) else f"{text[0]} ({type(error).__name__})"
