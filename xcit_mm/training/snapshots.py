"""Store a training iteration in a file of plain values and tensors, which cannot run code when it is read."""

import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..weights.reader import load_from_file
from .resuming import AtomicBackend

__all__ = ["pack", "read_snapshot", "unpack", "write_snapshot"]

_CONTENT = {"iteration", "parameters", "buffers", "args", "kwargs", "autocast", "random_state"}
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype)
# The data structures of a batch and their modules. A file holds the name of a structure, never a module.
_STRUCTURES = dict(
    InstanceData="mmengine.structures",
    LabelData="mmengine.structures",
    PixelData="mmengine.structures",
    DetDataSample="mmdet.structures",
    SegDataSample="mmseg.structures",
    DataSample="mmpretrain.structures",
    HorizontalBoxes="mmdet.structures.bbox",
    BitmapMasks="mmdet.structures.mask",
    PolygonMasks="mmdet.structures.mask",
)


def write_snapshot(content: Mapping[str, Any], path: str | Path) -> None:
    """Write an iteration atomically.

    Args:
        content: Mapping with the keys iteration, parameters, buffers, args, kwargs, autocast and random_state.

    Raises:
        TypeError: If a value is neither plain nor a known data structure.
        OSError: If the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(pack(content), buffer, pickle_protocol=4)  # older protocols store an empty array as a call of bytes()
    AtomicBackend().put(buffer.getvalue(), path)


def read_snapshot(path: str | Path, device: str = "cpu") -> dict[str, Any]:
    """Read an iteration and place its tensors on a device.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not a snapshot, or holds more than plain values.
    """
    content = load_from_file(str(path), map_location=device)
    missing = _CONTENT - content.keys() if isinstance(content, dict) else _CONTENT
    if missing:
        raise ValueError(f"{path} is not a snapshot of NonFiniteHook: it lacks {', '.join(sorted(missing))}")
    try:
        return unpack(content)
    except (KeyError, TypeError, AssertionError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def pack(value: Any) -> Any:
    """Convert a value to tensors, numpy arrays, plain values, tuples, lists and dicts. Data structures become dicts."""
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor)
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(pack, value))
    if type(value) in _PLAIN or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcSU"):
        return value
    kind, module = type(value).__name__, type(value).__module__
    if kind not in _STRUCTURES or not module.startswith(_STRUCTURES[kind]):
        raise TypeError(
            f"a batch with {module}.{kind} cannot be stored: only data structures of mmdet, mmseg and mmpretrain can"
        )
    return dict(structure=kind, arguments=pack(_arguments(value)))


def unpack(value: Any) -> Any:
    """Invert `pack`.

    Raises:
        KeyError: If the value names an unknown data structure.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(unpack, value))
    if not isinstance(value, dict):
        return value
    items = {key: unpack(item) for key, item in value.items()}
    if items.keys() != {"structure", "arguments"}:
        return items
    structure = getattr(importlib.import_module(_STRUCTURES[items["structure"]]), items["structure"])
    return structure(**items["arguments"])


def _arguments(structure: Any) -> dict[str, Any]:
    """Return the keyword arguments that rebuild a data structure."""
    if isinstance(structure, BaseDataElement):
        return dict(structure.items(), metainfo=structure.metainfo)
    if hasattr(structure, "masks"):
        return dict(masks=structure.masks, height=structure.height, width=structure.width)
    return dict(data=structure.tensor)
