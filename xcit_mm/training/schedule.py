"""The schedule of a run that resumes, which is that of its checkpoint."""

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

from ..utils.configs import plain_values
from ..weights.reader import meta_of

_SCHEDULE = ("train_cfg", "optim_wrapper", "param_scheduler", "auto_scale_lr")
# How often a run is validated, and how an optimizer computes, which may follow the machine.
_FREE = {"train_cfg.val_interval", "optim_wrapper.type", "optim_wrapper.dtype"}
_FREE |= {"optim_wrapper.loss_scale"}


class CannotResume(ValueError):
    """A checkpoint has another schedule than a config."""


def check_schedule(cfg: Config, checkpoint: Mapping[str, Any]) -> list[str]:
    """Compare a config with the text of a config in a checkpoint, if it has one. Neither is run.

    Returns:
        The names of the other parts that differ.

    Raises:
        CannotResume: If the schedule differs, with the first difference. The interval of
            validations and the precision of the optimizer may differ.
    """
    saved = meta_of(checkpoint).get("cfg")
    if not saved:
        return []
    old = _read_parts(saved)
    new = _read_parts(cfg.pretty_text)
    for part in _SCHEDULE:
        for key, before, after in _differences(part, _value(old, part), _value(new, part)):
            if key not in _FREE:
                problem = f"{key} is {after!r} in the config, {before!r} in the checkpoint"
                fix = "undo the edit, or start another run by load_from, see docs/recipes.md"
                raise CannotResume(f"{problem}: a run that resumes keeps its schedule: {fix}")
    others = {**old, **new}.keys() - set(_SCHEDULE)
    return sorted(name for name in others if old.get(name) != new.get(name))


def is_complete(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint of mmengine is at the end of its run."""
    info = checkpoint["message_hub"].get("runtime_info") or {}
    return checkpoint["meta"]["iter"] >= info.get("max_iters", math.inf)


def _read_parts(config: str) -> dict[str, str]:
    """Return the assignments of a config by name."""
    sources = [ast.unparse(statement) for statement in ast.parse(config).body]
    return {source.partition(" = ")[0]: source for source in sources}


def _value(parts: dict[str, str], name: str) -> Any:
    """Return the value of an assignment, its source if it is not plain, or None without one."""
    source = parts.get(name, "")
    try:
        return plain_values(source).get(name)
    except ValueError:
        return source


def _differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two values: a dotted key that starts with `name`, and both."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from _differences(f"{name}.{key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{name}.{number}", *pair)
    elif old != new:
        yield name, old, new
