"""Store a training iteration in a file of plain values and tensors, which cannot run code, and repeat it."""

import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ..models.build import model_config
from ..weights.reader import load_from_file
from .nonfinite_search import find_non_finite
from .random_state import set_random_state
from .resuming import AtomicBackend

ALL_FINITE = "every loss and gradient is finite when the iteration is run again without loss scaling"
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
    """Write an iteration, with the keys of `_CONTENT`, atomically.

    Raises:
        TypeError: If a value is neither plain nor a known data structure.
        OSError: If the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(_pack(content), buffer)
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
        return _unpack(content)
    except (KeyError, TypeError, AssertionError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _pack(value: Any) -> Any:
    """Convert a value to tensors, numpy arrays, plain values, tuples, lists and dicts. Data structures become dicts."""
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor)
    if isinstance(value, Mapping):
        return {key: _pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_pack, value))
    if type(value) in _PLAIN or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcSU"):
        return value
    kind, module = type(value).__name__, type(value).__module__
    if kind not in _STRUCTURES or not module.startswith(_STRUCTURES[kind]):
        raise TypeError(
            f"a batch with {module}.{kind} cannot be stored: only data structures of mmdet, mmseg and mmpretrain can"
        )
    return dict(structure=kind, arguments=_pack(_arguments(value)))


def _unpack(value: Any) -> Any:
    """Invert `_pack`; a KeyError names an unknown data structure."""
    if isinstance(value, list | tuple):
        return type(value)(map(_unpack, value))
    if not isinstance(value, dict):
        return value
    items = {key: _unpack(item) for key, item in value.items()}
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


def replay(config: str | Path, snapshot: str | Path) -> str:
    """Repeat the iteration of a snapshot and return where its first non-finite value comes from.

    The config is Python code and builds the model. The snapshot holds values only and cannot run code. The snapshot of
    one process of a distributed run is repeated with the BatchNorm statistics of its own images.

    Args:
        config: Path to the config of the run, which mmengine writes to the work directory.
        snapshot: Path to a file that `NonFiniteHook` wrote.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If `snapshot` is not a snapshot, or does not fit the model of the config.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    content = read_snapshot(snapshot, device)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.get("default_scope") or "mmengine")
    model = MODELS.build(model_config(cfg)).to(device).train()
    given, own = content["parameters"] | content["buffers"], _parameters_and_buffers(model)
    shapes, own_shapes = ({name: value.shape for name, value in tensors.items()} for tensors in (given, own))
    if shapes != own_shapes:
        (name, _), *_ = sorted(shapes.items() ^ own_shapes.items())
        raise ValueError(
            f"{snapshot} is of another model than {config}: they differ in {name}; give the config of the run"
        )
    copy_tensors(given, model)
    content["autocast"]["device_type"] = device
    return f"iteration {content['iteration']}: {locate_again(model, content) or ALL_FINITE}"


def locate_again(model: nn.Module, snapshot: dict[str, Any]) -> str:
    """Repeat the iteration of a snapshot with a model that holds its parameters; see `find_non_finite`."""
    copy_tensors(snapshot["buffers"], model)
    set_random_state(snapshot["random_state"])
    with torch.autocast(**snapshot["autocast"]):
        return find_non_finite(model, snapshot["args"], snapshot["kwargs"])


@torch.no_grad()
def copy_tensors(tensors: Mapping[str, Tensor], model: nn.Module) -> None:
    """Copy tensors into the parameters and buffers of a model by their names."""
    own = _parameters_and_buffers(model)
    for name, value in tensors.items():
        own[name].copy_(value)


def _parameters_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers. A state dict lacks the buffers that are not persistent."""
    return dict(model.named_parameters()) | dict(model.named_buffers())
