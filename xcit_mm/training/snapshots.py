"""A training iteration as a file: plain values and tensors, which reading cannot make run anything."""

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
# The data structures that may be in a batch, and where they are defined: a file gives a name, never a place.
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
    """Write an iteration whole or not at all.

    Args:
        content: With the keys of `_CONTENT`.

    Raises:
        TypeError: If it holds something that is neither plain nor a known data structure.
        OSError: If it cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(pack(content), buffer, pickle_protocol=4)  # older ones call bytes() for an empty array
    AtomicBackend().put(buffer.getvalue(), path)


def read_snapshot(path: str | Path, device: str = "cpu") -> dict[str, Any]:
    """Read an iteration, its tensors on a device.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no snapshot, or holds more than plain values.
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
    """The same as tensors, numpy arrays, plain values, tuples, lists and dicts; structures become dicts."""
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
        raise TypeError(f"a batch with {module}.{kind} cannot be stored: only data of mmdet, mmseg and mmpretrain can")
    return dict(structure=kind, arguments=pack(_arguments(value)))


def unpack(value: Any) -> Any:
    """What `pack` was given.

    Raises:
        KeyError: If it names an unknown structure.
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
    """The keyword arguments that build a structure anew."""
    if isinstance(structure, BaseDataElement):
        return dict(structure.items(), metainfo=structure.metainfo)
    if hasattr(structure, "masks"):
        return dict(masks=structure.masks, height=structure.height, width=structure.width)
    return dict(data=structure.tensor)
