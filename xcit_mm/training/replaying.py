"""Repeat the iteration of a snapshot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ..models.build import model_config
from .nonfinite_search import find_non_finite
from .random_state import set_random_state
from .snapshots import read_snapshot

__all__ = ["ALL_FINITE", "copy_tensors", "locate_again", "replay"]

ALL_FINITE = "every loss and gradient is finite when the iteration is run again without loss scaling"


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
