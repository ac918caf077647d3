"""Keys of `--cfg-options`: a key that no part of a config has is refused."""

import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner

# First names of the keys that the runner, the libraries' scripts or this package read of a config.
_READ_KEYS = {"compile", "custom_imports", "find_unused_parameters", "model_wrapper_cfg", "raster"}
_READ_KEYS |= {"runner_type", "source", "strategy", "sync_bn", "tta_model", "tta_pipeline"}
_READ_KEYS |= inspect.signature(Runner.__init__).parameters.keys()
# Keys that mmengine takes out of the config of a part before it makes the part.
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
    """Return whether a config has a dotted key, or may get the key by `options`."""
    first, *names = key.split(".")
    if first not in _READ_KEYS:
        # A variable of the config file, whose value the parts have copied. It is refused if a part
        # has a key of the same name, which the user may mean.
        return first in cfg and _last_name(key) not in map(_last_name, _dotted_keys(cfg))
    value: Any = cfg.get(first)
    prefix = first
    for name in names:
        if options.get(f"{prefix}._delete_") or not isinstance(value, Mapping | list | tuple):
            return True  # mmengine replaces the value, or raises an error
        if isinstance(value, Mapping) and name not in value:
            return _may_be_added(value, prefix, name, options, cfg.get("default_scope"))
        if not isinstance(value, Mapping) and not (name.isdigit() and int(name) < len(value)):
            return True
        value = value[name] if isinstance(value, Mapping) else value[int(name)]
        prefix += f".{name}"
    return True


def _may_be_added(
    part: Mapping[str, Any], prefix: str, name: str, options: Mapping[str, Any], scope: str | None
) -> bool:
    """Return whether the part at the key `prefix` may get a name that is not merely misspelled."""
    if name.startswith("_") or name in _TAKEN:
        return True
    part_type = options.get(f"{prefix}.type", part.get("type"))
    if part_type is None:
        is_new_part = f"{prefix}.{name}.type" in options
        is_value = f"{prefix}.{name}" in options
        return (is_new_part or is_value) and not get_close_matches(name, part, 1, 0.8)
    names = set(part)
    takes_any = True
    for part_class in _find_registered(part_type, part.get("_scope_", scope)):
        arguments, takes_any = _find_arguments(part_class)
        names |= arguments
    return name in names or (takes_any and not get_close_matches(name, names, 1, 0.8))


def _find_registered(part_type: Any, scope: str | None) -> Iterator[Any]:
    """Yield the classes and functions that any registry has under the type of a part."""
    if not isinstance(part_type, str):
        yield part_type
        return
    for registry in vars(mmengine.registry).values():
        if isinstance(registry, Registry):
            with registry.switch_scope_and_registry(scope) as scoped:
                registered = scoped.get(part_type)
            if registered is not None:
                yield registered


def _find_arguments(part_class: Any) -> tuple[set[str], bool]:
    """Return the argument names of a class and its bases, and whether the class takes any name."""
    functions = [part_class]
    if isinstance(part_class, type):
        bases = part_class.__mro__[:-1]  # without object
        functions = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)]
    signatures = [inspect.signature(function).parameters for function in functions]
    parameters = signatures[0].values() if signatures else ()
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    return {name for signature in signatures for name in signature}, takes_any


def _find_similar(cfg: Config, key: str) -> str | None:
    """Return the key with the most similar last name, or None; of several, a short training key."""
    keys = sorted(_dotted_keys(cfg), key=lambda name: (name.startswith("train"), -len(name), name))
    keys_by_name = {_last_name(name): name for name in keys}  # the last key of a name stays
    similar = get_close_matches(_last_name(key), keys_by_name, 1)
    return keys_by_name[similar[0]] if similar else None


def _last_name(key: str) -> str:
    return key.rpartition(".")[2]


def _dotted_keys(cfg: Config) -> Iterator[str]:
    """Yield the keys of all values that the runner or the scripts read."""
    for key in _READ_KEYS.intersection(cfg):
        yield from _keys_under(key, cfg[key])


def _keys_under(prefix: str, value: Any) -> Iterator[str]:
    """Yield the dotted key `prefix` of a value, and those of all values in it."""
    yield prefix
    entries = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(entries, Mapping):
        for name, entry in entries.items():
            yield from _keys_under(f"{prefix}.{name}", entry)
