"""Keys of `--cfg-options`: a key that no part of a config has is refused."""

import inspect
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
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
        return first in cfg and _last_name(key) not in map(_last_name, dict(_dotted_values(cfg)))
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
    names, takes_any = _find_names(part, part_type, scope)
    return name in names or (takes_any and not get_close_matches(name, names, 1, 0.8))


def _find_names(
    part: Mapping[str, Any], part_type: Any, scope: str | None
) -> tuple[set[str], bool]:
    """Return the names in a part and in its class, and whether the class takes any name."""
    names = set(part)
    takes_any = True
    for part_class in _find_registered(part_type, part.get("_scope_", scope)):
        arguments, takes_any = _find_arguments(part_class)
        names |= arguments
    return names, takes_any


def _find_registered(part_type: Any, scope: str | None) -> Iterator[Any]:
    """Yield the classes and functions that any registry has under the type of a part, if any."""
    if part_type is None:
        return
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
    """Return the key with the most similar last name, or None: of the same part if it has one, else
    under the most similar key, else a short training key.
    """
    values = dict(_dotted_values(cfg))
    parent, _, name = key.rpartition(".")
    part = values.get(parent)
    if isinstance(part, Mapping):
        names, _ = _find_names(part, part.get("type"), cfg.get("default_scope"))
        similar = get_close_matches(name, names, 1)
        if similar:
            return f"{parent}.{similar[0]}"
    similar = get_close_matches(name, {_last_name(known) for known in values}, 1)
    keys = [known for known in values if _last_name(known) in similar]

    def rank(known: str) -> tuple[float, bool, int]:
        likeness = SequenceMatcher(None, parent, known.rpartition(".")[0]).ratio()
        return likeness, known.startswith("train"), -len(known)

    return max(keys, key=rank, default=None)


def _last_name(key: str) -> str:
    return key.rpartition(".")[2]


def _dotted_values(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Yield all values that the runner or the scripts read, with their dotted keys."""
    for key in sorted(_READ_KEYS.intersection(cfg)):
        yield from _values_under(key, cfg[key])


def _values_under(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, whose dotted key is `prefix`, and all values in it, with their keys."""
    yield prefix, value
    entries = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(entries, Mapping):
        for name, entry in entries.items():
            yield from _values_under(f"{prefix}.{name}", entry)
