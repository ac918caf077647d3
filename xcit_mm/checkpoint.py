"""Checkpoints: one safe reader for every way into the program, and loading that is whole or not at all."""

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from . import safe_pickle
from .weights import fetch

__all__ = ["load_pretrained", "read_checkpoint"]


@CheckpointLoader.register_scheme(prefixes="", force=True)
def read_checkpoint(filename: str, map_location: Any = "cpu") -> Any:
    """Read a local file without running anything in it.

    It takes mmengine's place as the reader of local files, so that resuming and testing from
    checkpoints that training wrote works where `torch.load` refuses them (torch >= 2.6).

    Args:
        filename: Path of a file that `torch.save` wrote.
        map_location: As in `torch.load`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a checkpoint, or not a trustworthy one.
    """
    try:
        # Not torch's own weights-only reader but a stricter one that also admits mmengine's files.
        return torch.load(filename, map_location, pickle_module=safe_pickle, weights_only=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"no checkpoint at {filename}: check the path") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot read {filename} as a checkpoint: {error}") from error


@CheckpointLoader.register_scheme(prefixes="xcit://")
def read_published(filename: str, map_location: Any = "cpu") -> Any:
    """Read `xcit://NAME`, a published file, downloaded if need be."""
    return read_checkpoint(str(fetch(filename.removeprefix("xcit://"))), map_location)


# What files for other tasks hold beside a trunk, and what they may lack: a pyramid.
_CLASSIFIER = ("cls_token", "cls_attn_blocks.", "norm.", "head.")
_PYRAMID = ("fpn1.", "fpn2.", "fpn3.", "fpn4.")


def _backbone_state(checkpoint: Mapping) -> dict[str, Tensor]:
    """The published names of a backbone's tensors, whatever they are wrapped in."""
    for wrapper in ("state_dict", "model"):
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    inner = {key.removeprefix("backbone."): value for key, value in checkpoint.items() if key.startswith("backbone.")}
    return inner or dict(checkpoint)


def load_pretrained(backbone: nn.Module, source: str) -> None:
    """Fill a backbone from a checkpoint: every parameter of the trunk, or none.

    Only a pyramid may stay as it was, and only a classifier may be left over.

    Args:
        backbone: A module whose state has the published names.
        source: A path, a URL or `xcit://NAME`.

    Raises:
        FileNotFoundError, ConnectionError: If there is no such file.
        ValueError: If the file does not fit the backbone, which is left unchanged.
    """
    given = _backbone_state(CheckpointLoader.load_checkpoint(source, map_location="cpu"))
    wanted = backbone.state_dict()
    missing = [key for key in wanted if key not in given and not key.startswith(_PYRAMID)]
    surplus = [key for key in given if key not in wanted and not key.startswith(_CLASSIFIER)]
    unequal = [
        f"{key} of {tuple(given[key].shape)}, not {tuple(wanted[key].shape)}"
        for key in wanted
        if key in given and given[key].shape != wanted[key].shape
    ]
    for problem, keys in (("lacks", missing), ("has the unknown", surplus), ("has", unequal)):
        if keys:
            listed = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            raise ValueError(f"{source} does not fit the backbone: it {problem} {listed}")
    backbone.load_state_dict({key: value for key, value in given.items() if key in wanted}, strict=False)
    random = [key for key in wanted if key not in given]
    print_log(
        f"{source}: loaded {len(wanted) - len(random)} tensors into the backbone"
        + (f"; {len(random)} of the pyramid keep their initial values" if random else ""),
        logger="current",
    )
