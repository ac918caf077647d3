"""Keys of `--cfg-options`: a key that no part of a config has is refused."""

import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner

# Besides the arguments of `Runner`, what the runner, the libraries' scripts or this package read.
_READ = {"compile", "custom_imports", "find_unused_parameters", "model_wrapper_cfg", "raster"}
_READ |= {"runner_type", "source", "strategy", "sync_bn", "tta_model", "tta_pipeline"}
# What mmengine takes out of the config of a part before it makes the part.
_TAKEN = {"by_epoch", "constructor", "convert_to_iter_based", "paramwise_cfg", "priority", "type"}


def check_keys(cfg: Config, options: Mapping[str, Any]) -> None:
    """Raise ValueError for the first key that changes nothing, with the most similar key.

    Args:
        cfg: The config before the change.
        options: Values by dotted key, such as `{"train_cfg.max_iters": 3}`.
    """
    for key in options:
        if not _is_known(cfg, key, options):
            similar = _find_similar(cfg, key)
            hint = f"did you mean {similar}?" if similar else "see the keys of the config"
            raise ValueError(f"--cfg-options {key}: no part of the config has this key: {hint}")


def _is_known(cfg: Config, key: str, options: Mapping[str, Any]) -> bool:
    value: Any = cfg
    parts = key.split(".")
    if parts[0] not in _read_keys():
        # A variable of the file, whose value other parts already have.
        return parts[0] in cfg and not _with_leaf(cfg, key)
    for depth, part in enumerate(parts):
        prefix = ".".join(parts[:depth])
        if options.get(f"{prefix}._delete_"):
            return True
        if isinstance(value, Mapping | Config):
            if part not in value:
                return depth == 0 or _may_be_added(cfg, value, key, depth, options)
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return True  # mmengine replaces it, or raises an error
    return True


def _read_keys() -> set[str]:
    return {*inspect.signature(Runner.__init__).parameters, *_READ}


def _may_be_added(
    cfg: Config, part: Mapping[str, Any], key: str, depth: int, options: Mapping[str, Any]
) -> bool:
    """Return whether the config of a part may get the key at a depth of a dotted key."""
    parts = key.split(".")
    name = parts[depth]
    prefix = ".".join(parts[:depth])
    if name.startswith("_") or name in _TAKEN:
        return True
    part_type = options.get(f"{prefix}.type", part.get("type"))
    if part_type is None:
        is_last = depth == len(parts) - 1
        is_typed = f"{prefix}.{name}.type" in options
        return (is_last or is_typed) and not get_close_matches(name, part, 1, 0.8)
    names: set[str] = set(part)
    takes_any = True
    for part_class in _find_classes(part_type, part.get("_scope_", cfg.get("default_scope"))):
        arguments, takes_any = _arguments(part_class)
        names |= arguments
    return name in names or (takes_any and not get_close_matches(name, names, 1, 0.8))


def _find_classes(part_type: Any, scope: str | None) -> Iterator[Any]:
    """Yield what registries have under the type of a part."""
    if not isinstance(part_type, str):
        yield part_type
        return
    registries = [
        value for value in vars(mmengine.registry).values() if isinstance(value, Registry)
    ]
    for registry in registries:
        with registry.switch_scope_and_registry(scope) as scoped:
            found = scoped.get(part_type)
        if found is not None:
            yield found


def _arguments(part_class: Any) -> tuple[set[str], bool]:
    """Return the names of arguments of a class and its bases, and whether it takes any other."""
    functions = [part_class]
    if isinstance(part_class, type):
        bases = part_class.__mro__[:-1]  # without object
        functions = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)]
    names = set()
    takes_any = False
    for number, function in enumerate(functions):
        parameters = inspect.signature(function).parameters.values()
        names |= {parameter.name for parameter in parameters}
        if number == 0:
            takes_any = any(value.kind == value.VAR_KEYWORD for value in parameters)
    return names, takes_any


def _find_similar(cfg: Config, key: str) -> str | None:
    same_leaf = _with_leaf(cfg, key)
    if same_leaf:
        return same_leaf[0]
    keys = sorted(_dotted_keys(cfg))
    leaves = {name.rpartition(".")[2]: name for name in reversed(keys)}
    similar = get_close_matches(key, keys, 1, 0.8)
    similar_leaf = get_close_matches(key.rpartition(".")[2], leaves, 1)
    if similar:
        return similar[0]
    return leaves[similar_leaf[0]] if similar_leaf else None


def _with_leaf(cfg: Config, key: str) -> list[str]:
    """List the keys of parts that end as a key does, those of the training and short ones first."""
    leaf = key.rpartition(".")[2]
    ends = [name for name in _dotted_keys(cfg) if name.rpartition(".")[2] == leaf]
    return sorted(set(ends) - {key}, key=lambda name: (not name.startswith("train"), len(name)))


def _dotted_keys(cfg: Config) -> Iterator[str]:
    """Yield the keys of all values that the runner or the scripts read."""
    for key in _read_keys() & set(cfg.keys()):
        yield from _below(key, cfg[key])


def _below(prefix: str, value: Any) -> Iterator[str]:
    yield prefix
    if isinstance(value, Mapping):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for name, item in items:
        yield from _below(f"{prefix}.{name}", item)
