"""The schedule of a run that resumes, which is that of its checkpoint."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

from ..weights.reader import meta_of

_SCHEDULE = {"train_cfg", "optim_wrapper", "param_scheduler", "auto_scale_lr"}
# How often a run is validated, and how an optimizer computes, which may follow the machine.
_PRECISION = ("optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale")
_FREE = ("train_cfg.val_interval", *_PRECISION)


def check_schedule(cfg: Config, checkpoint: Mapping[str, Any]) -> None:
    """Compare a config with the text of a config in a checkpoint, if it has one. Neither is run.

    Raises:
        ValueError: If the schedule differs, with the first difference. The interval of validations
            and the precision of the optimizer may differ.
    """
    new = _schedule(cfg.pretty_text)
    saved = _schedule(meta_of(checkpoint).get("cfg") or cfg.pretty_text)
    for key in {**saved, **new}:
        if new.get(key) != saved.get(key) and not key.startswith(_FREE):
            values = f"{new.get(key)} in the config, {saved.get(key)} in the checkpoint"
            fix = "undo the edit, or start another run by load_from, see docs/recipes.md"
            raise ValueError(f"{key} is {values}: a run that resumes keeps its schedule: {fix}")


def _schedule(config: str) -> dict[str, str]:
    """Return the code of the values of the schedule in a config's text, by dotted key."""
    values: dict[str, str] = {}
    for statement in ast.parse(config).body:
        if isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            if name in _SCHEDULE:
                values.update(_flatten(name, statement.value))
    return values


def _flatten(key: str, node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and the code of the values inside `dict(...)` and lists."""
    if isinstance(node, ast.Call) and node.keywords:
        for keyword in node.keywords:
            yield from _flatten(f"{key}.{keyword.arg}", keyword.value)
    elif isinstance(node, ast.List) and node.elts:
        for number, element in enumerate(node.elts):
            yield from _flatten(f"{key}.{number}", element)
    else:
        yield key, ast.unparse(node)
