"""The schedule of a run that resumes: that of its config, which may have become longer since."""

import ast
import textwrap
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..utils.cli import log_line
from ..utils.configs import plain_values

# Parts of a config that determine a training, and keys in them that do not when it resumes.
_SCHEDULE_PARTS = ("train_cfg", "optim_wrapper", "param_scheduler", "auto_scale_lr")
_TRAINING_PARTS = ("model", "data_preprocessor", "train_dataloader", *_SCHEDULE_PARTS)
_KEYS_WITHOUT_EFFECT = {"init_cfg", "val_interval"}
_KEYS_WITHOUT_EFFECT |= {"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"}
# How an optimizer computes, which may follow the machine.
_PRECISION_KEYS = {"optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale"}
_RUN_LENGTH_KEYS = ("train_cfg.max_iters", "train_cfg.max_epochs")
# Keys of a scheduler that grow with the run, besides its end.
_SCHEDULER_LENGTH_KEYS = {"T_max", "total_iters", "milestones"}

# Old and new values by dotted key.
Edits = dict[str, tuple[Any, Any]]


class CannotResume(ValueError):
    """A checkpoint does not fit the schedule or the optimizer of a config."""


def follow_config(runner: Runner, checkpoint: dict) -> None:
    """Replace rates and schedulers in the checkpoint from which a run, made longer since, resumes.

    The new ones are those of a run that had the config from the start, and mmengine loads them.
    Each edit of the config is logged. A run of the same length leaves the checkpoint as it is.
    Models with several optimizers, and schedules that depend on scores, stay as in the checkpoint.

    Raises:
        CannotResume: If the checkpoint is beyond the config's end, the schedule was edited in
            another way than to be longer, or the optimizer has other groups of parameters.
    """
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        is_complete(checkpoint, "epochs", runner.max_epochs)
    else:
        is_complete(checkpoint, "iters", runner.max_iters)
    is_longer = _check_edits(runner.cfg.pretty_text, checkpoint)
    if not is_longer or "optimizer" not in checkpoint:
        return
    schedulers = runner.param_schedulers or []
    depends_on_scores = any(hasattr(scheduler, "need_val_args") for scheduler in schedulers)
    if isinstance(runner.optim_wrapper, OptimWrapperDict) or depends_on_scores:
        log_line("schedule and optimizer's options stay as in the checkpoint")
        return
    _step_schedulers(runner, schedulers, checkpoint["meta"])
    _replace_rates(runner.optim_wrapper, checkpoint)
    checkpoint["param_schedulers"] = [scheduler.state_dict() for scheduler in schedulers]


def is_complete(checkpoint: Mapping[str, Any], unit: str, end: int) -> bool:
    """Return whether a checkpoint is at the end of a run of `end` 'iters' or 'epochs'.

    Raises:
        CannotResume: If the checkpoint is beyond the end.
    """
    meta = checkpoint["meta"]
    done = meta["iter"]
    if unit == "epochs":
        info = checkpoint["message_hub"].get("runtime_info", {})
        # A checkpoint of an epoch's last iteration is saved before the epoch counts.
        by_iterations = done * info.get("max_epochs", 0) // max(1, info.get("max_iters", 1))
        done = max(meta["epoch"], by_iterations)
    if done > end:
        fix = f"raise max_{unit}, or resume from an earlier checkpoint"
        raise CannotResume(f"max_{unit}={end}, but {done} {unit} are trained: {fix}")
    return done == end


def _check_edits(config: str, checkpoint: Mapping[str, Any]) -> bool:
    """Log how the text of a config differs from that in a checkpoint, and return whether the run is
    longer. Raise CannotResume for another edit of the schedule. Neither text is run as code.
    """
    saved_parts = _read_assignments(checkpoint["meta"].get("cfg", ""))
    parts = _read_assignments(config)
    edits: Edits = {}
    for part in _TRAINING_PARTS:
        edits |= _find_edits(part, saved_parts.get(part), parts.get(part))
    is_longer = not edits.keys().isdisjoint(_RUN_LENGTH_KEYS)
    info = checkpoint["message_hub"].get("runtime_info", {})
    run_ends = (info.get("max_iters"), info.get("max_epochs"))
    for name, (old, new) in edits.items():
        change = f"{textwrap.shorten(repr(old), 60)} -> {textwrap.shorten(repr(new), 60)}"
        edit = f"the config was edited: {name} {change}"
        is_of_schedule = name.startswith(_SCHEDULE_PARTS) and name not in _PRECISION_KEYS
        if is_of_schedule and not (is_longer and _grows_with_the_run(name, old, new, run_ends)):
            fix = "undo the edit, or start anew from the checkpoint by load_from, without --resume"
            raise CannotResume(f"{edit}; a run that resumes keeps its schedule: {fix}")
        log_line(edit)
    return is_longer


def _read_assignments(config: str) -> dict[str, Any]:
    """Return the values that a config assigns, by name, or the source if a value is not plain."""
    parts: dict[str, Any] = {}
    for statement in ast.parse(config).body:
        source = ast.unparse(statement)
        name = source.partition(" = ")[0]
        try:
            parts |= plain_values(source)
        except ValueError:
            parts[name] = source
    return parts


def _find_edits(name: str, old: Any, new: Any) -> Edits:
    """Return the differences that affect a resumed run, by dotted keys that start with `name`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [key for key in {**old, **new} if key not in _KEYS_WITHOUT_EFFECT]
        pairs = {key: (old.get(key), new.get(key)) for key in keys}
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = dict(enumerate(zip(old, new, strict=True)))
    else:
        return {} if old == new else {name: (old, new)}
    edits: Edits = {}
    for key, pair in pairs.items():
        edits |= _find_edits(f"{name}.{key}", *pair)
    return edits


def _grows_with_the_run(name: str, old: Any, new: Any, run_ends: Sequence[int | None]) -> bool:
    """Return whether an edit makes the run, or a scheduler that lasts to the end of it, longer.

    `run_ends` are the numbers of iterations and of epochs before the edit.
    """
    keys = name.split(".")
    is_end = keys[-1] == "end" and old in run_ends  # not that of a warm-up
    is_length = name in _RUN_LENGTH_KEYS or is_end or not _SCHEDULER_LENGTH_KEYS.isdisjoint(keys)
    are_numbers = isinstance(old, int | float) and isinstance(new, int | float)
    return is_length and are_numbers and old < new


def _step_schedulers(runner: Runner, schedulers: list, meta: Mapping[str, Any]) -> None:
    """Step new schedulers as often, and in the order, as a run has done up to a checkpoint."""
    iterations = meta["iter"]
    epoch_ends: Counter[int] = Counter()  # how many epochs end after an iteration
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        length = len(runner.train_loop.dataloader)
        # With larger batches than now, the same epochs had fewer iterations.
        ends = [min(epoch * length, iterations) for epoch in range(1, meta["epoch"] + 1)]
        epoch_ends.update(ends)
    by_iteration = [scheduler for scheduler in schedulers if not scheduler.by_epoch]
    by_epoch = [scheduler for scheduler in schedulers if scheduler.by_epoch]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no steps
        for iteration in range(1, iterations + 1):
            for scheduler in by_iteration + by_epoch * epoch_ends[iteration]:
                scheduler.step()


def _replace_rates(wrapper: OptimWrapper, checkpoint: dict) -> None:
    """Replace the optimizer's groups in a checkpoint, which hold the rates, by those of the run."""
    saved = checkpoint["optimizer"]
    current = wrapper.state_dict()
    groups = [group["params"] for group in current["param_groups"]]
    if groups != [group["params"] for group in saved["param_groups"]]:
        problem = "the optimizer has other groups of parameters than in the checkpoint"
        raise CannotResume(f"{problem}: undo the edit of frozen layers, or use load_from")
    rate = current["param_groups"][0]["lr"]
    saved_rate = saved["param_groups"][0]["lr"]
    if rate != saved_rate:
        iteration = checkpoint["meta"]["iter"] + 1
        log_line(f"the rate at iteration {iteration} is {rate:.4g}, not {saved_rate:.4g}")
    # mmengine keeps the base rate in a group of its own.
    for key in {"param_groups", "base_param_settings"} & saved.keys():
        saved[key] = current[key]
