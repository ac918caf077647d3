"""Parts of a config, dicts with a type: their types and classes, and the steps of a pipeline."""

from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, Registry


def iter_parts(config: Any) -> Iterator[dict]:
    """Iterate over the parts of a config, and over those inside of other parts."""
    if isinstance(config, dict):
        if "type" in config:
            yield config
            if type_name(config) == "Albu":  # its steps belong to albumentations
                return
        config = list(config.values())
    if isinstance(config, list | tuple):
        for inner in config:
            yield from iter_parts(inner)


def type_name(part: dict) -> str:
    """Return the name of a part's type without its scope. The type may be a class."""
    part_type = part["type"]
    return part_type.rpartition(".")[2] if isinstance(part_type, str) else part_type.__name__


def part_class(part: dict, registry: Registry, scope: str | None = None) -> type[Any] | None:
    """Return the class of a part of a config, or None if it is not registered.

    Args:
        scope: The library that is searched first, since mmpretrain has its own XCiT. Default: the
            current scope.
    """
    name = part.get("type")
    if not isinstance(name, str):
        return name  # a class, or None without a type
    with registry.switch_scope_and_registry(part.get("_scope_", scope)) as scoped:
        return scoped.get(name)


def backbone_class(cfg: Config) -> type[Any] | None:
    """Return the class of a config's backbone, or None if none is registered."""
    return part_class(cfg.get("model", {}).get("backbone") or {}, MODELS, cfg.get("default_scope"))


def find_step(pipeline: Sequence[dict], name: str) -> dict | None:
    """Return the first step of a pipeline with a type of this name, or None."""
    return next((step for step in pipeline if type_name(step) == name), None)


def loading_step(pipeline: Sequence[dict]) -> dict | None:
    """Return the first step of a pipeline that loads an image, or None."""
    for step in pipeline:
        name = type_name(step)
        if name.startswith("Load") and "Annotation" not in name:
            return step
    return None
