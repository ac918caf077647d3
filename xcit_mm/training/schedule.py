"""The schedule of a run, which stays the same when the run resumes."""

import ast
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from ..weights.reader import meta_of

_SCHEDULE = ("train_cfg", "optim_wrapper", "param_scheduler", "auto_scale_lr")
# How often a run is validated, and how an optimizer computes, which may follow the machine.
_PRECISION = ("optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale")
_FREE = ("train_cfg.val_interval", *_PRECISION)


def check_schedule(cfg: Config, checkpoint: Mapping[str, Any]) -> None:
    """Compare the schedule in a config with the schedule in a checkpoint's config, if it has one.

    Both are compared as text, because a checkpoint has only a text. Neither is run. The interval
    of validations and the precision of the optimizer may differ.

    Raises:
        ValueError: If the schedules differ. The message names the first variable that does.
    """
    new = _schedule(cfg.pretty_text)
    saved = _schedule(meta_of(checkpoint).get("cfg") or cfg.pretty_text)
    for name in _SCHEDULE:
        if new.get(name) != saved.get(name):
            values = f"{new.get(name)} in the config, {saved.get(name)} in the checkpoint"
            fix = "undo the edit, or start another run with load_from, see docs/recipes.md"
            raise ValueError(f"{name} is {values}, but a resumed run keeps its schedule: {fix}")


def _schedule(config: str) -> dict[str, str]:
    """Return the code of each variable in a config, without what may differ when a run resumes."""
    schedule = {}
    for statement in ast.parse(config).body:
        if isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            value = statement.value
            if isinstance(value, ast.Call):
                keywords = value.keywords
                value.keywords = [item for item in keywords if f"{name}.{item.arg}" not in _FREE]
            schedule[name] = ast.unparse(value)
    return schedule
