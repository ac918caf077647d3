"""The reader of checkpoint files for every part of the program. It runs nothing in them."""

from pathlib import Path
from typing import Any

import torch
from mmengine.runner import CheckpointLoader

from .published import PUBLISHED, REMOTE_PREFIXES, ensure_downloaded
from .torch_files import place, read_legacy, read_zip


# mmengine logs a loader by its function's name less "load_from_".
@CheckpointLoader.register_scheme(prefixes="", force=True)
def load_from_file(filename: str, map_location: Any = "cpu") -> Any:
    """Read a local .pth or .safetensors file without running anything in it.

    It replaces mmengine's reader of local files, for `init_cfg`, `load_from`, resuming and testing alike. It also reads
    the checkpoints of a training that `torch.load` rejects since 2.6. It leaves out the text of a config in the file,
    which mmengine would execute.

    Args:
        filename: Path of the file. Its first bytes decide how it is read, not its suffix.
        map_location: See `torch.load`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a checkpoint, is damaged, or holds more than weights and plain values.
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
        raise ValueError(f"{path} is not a checkpoint: {_describe_start(start)}")
    try:
        content = read(path, map_location)
        _drop_configs(content)
        drop_functions(content)
    except Exception as error:  # a damaged file makes a reader raise nearly anything
        raise ValueError(f"cannot read {path} as a checkpoint: {_first_line(error)}") from error
    return content


@CheckpointLoader.register_scheme(prefixes=list(REMOTE_PREFIXES), force=True)
def load_from_web(filename: str, map_location: Any = "cpu") -> Any:
    """Read `xcit://NAME`, a published file, or a URL, and download it first if necessary."""
    return load_from_file(str(ensure_downloaded(filename)), map_location)


def load_checkpoint(name: str | Path) -> Any:
    """Read a published name, with or without `xcit://`, or any name that mmengine can read, without a log."""
    if name in PUBLISHED and not Path(name).exists():
        name = f"xcit://{name}"
    return CheckpointLoader.load_checkpoint(str(name), map_location="cpu", logger="silent")


def _drop_configs(content: Any) -> None:
    """Remove the text of a config, which mmengine executes when it resumes or infers.

    mmengine's runner, its inferencers and older checkpoints of its libraries have it in different places.
    """
    for parents in (("meta",), ("message_hub", "runtime_info")):
        part = content
        for parent in parents:
            part = part.get(parent) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop("cfg", None)
            part.pop("config", None)


def drop_functions(content: Any) -> None:
    """Remove the functions of schedulers, of which only the name is read. A new scheduler has its own."""
    schedulers = content.get("param_schedulers") if isinstance(content, dict) else None
    # A list of states, or a dict of such lists if there are several optimizers.
    for states in schedulers.values() if isinstance(schedulers, dict) else [schedulers]:
        for state in states if isinstance(states, list) else ():
            if isinstance(state, dict):
                for key in [key for key, value in state.items() if key == "anneal_func" or callable(value)]:
                    del state[key]


def _read_safetensors(path: Path, map_location: Any) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise ValueError("reading it needs safetensors: pip install safetensors") from None
    return {key: place(value, map_location) for key, value in load_file(path).items()}


def _describe_start(start: bytes) -> str:
    if not start:
        return "it is empty; download or copy it again"
    if start.lstrip()[:1] == b"<":
        return "it is a web page, probably of a failed download; download it again"
    return f"it starts with {start!r}, which neither torch nor safetensors writes"


def _first_line(error: Exception) -> str:
    """Return a message of one line and of limited length, since it may quote the file."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300] + ("" if isinstance(error, ValueError | OSError) else f" ({type(error).__name__})")
