"""The schedule of a run that resumes: that of its config, which may have become longer since."""

import textwrap
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..utils.cli import log_line
from ..utils.configs import plain_values

# Parts of a config that determine a training, and keys in them that do not when it resumes.
_SCHEDULE = ("train_cfg", "optim_wrapper", "param_scheduler", "auto_scale_lr")
_PARTS = ("model", "data_preprocessor", "train_dataloader", *_SCHEDULE)
_WITHOUT_EFFECT = {
    "init_cfg",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "val_interval",
}
# How an optimizer computes, which may follow the machine.
_PRECISION = {"optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale"}
# Keys of a schedule that grow with the run.
_LENGTHS = {"max_iters", "max_epochs", "end", "T_max", "total_iters", "milestones"}


class CannotResume(ValueError):
    """A checkpoint does not fit the schedule or the optimizer of a config."""


def follow_config(runner: Runner, checkpoint: dict) -> None:
    """Give a checkpoint from which a longer run resumes the rates of its config.

    They are those of a run that had the config from the start, and mmengine loads them. Each edit
    is logged. Without edits the checkpoint is left as it is. Models with several optimizers, and
    schedules that depend on scores, stay as in the checkpoint.

    Raises:
        CannotResume: If the run is longer than the config's, its schedule was edited in another way
            than to be longer, or its optimizer has other groups of parameters.
    """
    # Both raise if the run is longer than the config's.
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        is_complete(checkpoint, "epochs", runner.max_epochs)
    else:
        is_complete(checkpoint, "iters", runner.max_iters)
    edits = _find_edits(checkpoint["meta"].get("cfg", ""), runner.cfg.pretty_text)
    if edits is not None:
        _check_schedule(edits)
        for name, change in edits.items():
            log_line(f"the config was edited: {name} {change}")
        if not _names_of_lengths(edits):
            return
    if "optimizer" not in checkpoint:
        return
    schedulers = runner.param_schedulers or []
    depends_on_scores = any(hasattr(scheduler, "need_val_args") for scheduler in schedulers)
    if isinstance(runner.optim_wrapper, OptimWrapperDict) or depends_on_scores:
        log_line("schedule and optimizer's options stay as in the checkpoint")
        return
    _advance(runner, schedulers, checkpoint["meta"])
    _replace_options(runner.optim_wrapper, checkpoint)
    checkpoint["param_schedulers"] = [scheduler.state_dict() for scheduler in schedulers]


def is_complete(checkpoint: Mapping[str, Any], unit: str, end: int) -> bool:
    """Return whether a checkpoint is at the end of a run of so many 'iters' or 'epochs'.

    Raises:
        CannotResume: If it is beyond the end.
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


def _find_edits(saved_config: str, config: str) -> dict[str, str] | None:
    """Describe the differences between the config in a checkpoint, which is not run as code, and
    that of the run: 'OLD -> NEW' by dotted key. Configs that cannot be compared give None.
    """
    try:
        saved_values = plain_values(saved_config)
        values = plain_values(config)
    except ValueError:
        if saved_config == config:
            return {}
        log_line("the config was edited: it has values that cannot be compared")
        return None
    edits: dict[str, str] = {}
    for part in _PARTS:
        edits |= _differences(part, saved_values.get(part), values.get(part))
    return edits


def _differences(name: str, old: Any, new: Any) -> dict[str, str]:
    """Describe each difference between two values of a config by its dotted key."""
    pairs: dict[Any, tuple[Any, Any]] = {}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [key for key in {**old, **new} if key not in _WITHOUT_EFFECT]
        pairs = {key: (old.get(key), new.get(key)) for key in names}
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = dict(enumerate(zip(old, new, strict=True)))
    elif old != new:
        change = f"{textwrap.shorten(repr(old), 60)} -> {textwrap.shorten(repr(new), 60)}"
        return {name: change}
    edits: dict[str, str] = {}
    for key, pair in pairs.items():
        edits |= _differences(f"{name}.{key}", *pair)
    return edits


def _names_of_lengths(edits: Iterable[str]) -> list[str]:
    """Return the names of edits that change the length of a schedule."""
    schedule = [name for name in edits if name.startswith(_SCHEDULE)]
    return [name for name in schedule if not _LENGTHS.isdisjoint(name.split("."))]


def _check_schedule(edits: Mapping[str, str]) -> None:
    """Raise CannotResume if a schedule was edited in another way than to be longer."""
    lengths = _names_of_lengths(edits)
    allowed = {*lengths, *_PRECISION}
    other = [name for name in edits if name.startswith(_SCHEDULE) and name not in allowed]
    ends = [edits[name].split(" -> ") for name in lengths if name.startswith("train_cfg.max_")]
    numbers = [list(map(int, end)) for end in ends if all(map(str.isdigit, end))]
    is_longer = any(before < after for before, after in numbers)
    if lengths and not is_longer:
        other += lengths
    if other:
        problem = f"the config was edited: {other[0]} {edits[other[0]]}"
        fix = "undo the edit, or start anew from the checkpoint by load_from, without --resume"
        raise CannotResume(f"{problem}; a run that resumes keeps its schedule: {fix}")


def _advance(runner: Runner, schedulers: list, meta: Mapping[str, Any]) -> None:
    """Step new schedulers as often, and in the order, as in a run up to a checkpoint."""
    epochs = 0
    length = 1  # iterations of an epoch
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        epochs = meta["epoch"]
        length = len(runner.train_loop.dataloader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no steps
        for iteration in range(1, meta["iter"] + 1):
            _step(schedulers, by_epoch=False)
            if iteration % length == 0 and iteration // length <= epochs:
                _step(schedulers, by_epoch=True)
        # With larger batches than now, the same epochs had fewer iterations.
        for _ in range(meta["iter"] // length, epochs):
            _step(schedulers, by_epoch=True)


def _step(schedulers: list, by_epoch: bool) -> None:
    for scheduler in schedulers:
        if scheduler.by_epoch == by_epoch:
            scheduler.step()


def _replace_options(wrapper: OptimWrapper, checkpoint: dict) -> None:
    """Replace rates and options of the optimizer in a checkpoint by those of the run."""
    groups = wrapper.param_groups
    state = checkpoint["optimizer"]
    saved_groups = list(state["param_groups"])
    if "base_param_settings" in state:  # mmengine keeps the base rate in a group of its own
        saved_groups.append(state["base_param_settings"])
    sizes = [len(group["params"]) for group in groups]
    if sizes != [len(group["params"]) for group in saved_groups]:
        problem = f"the optimizer has {len(groups)} groups of parameters, {len(saved_groups)}"
        fix = "undo the edit of frozen layers, or use load_from"
        raise CannotResume(f"{problem} in the checkpoint, or of other sizes: {fix}")
    rate = saved_groups[0]["lr"]
    for group, saved in zip(groups, saved_groups, strict=True):
        saved.update({key: value for key, value in group.items() if key != "params"})
    if groups[0]["lr"] != rate:
        place = f"the rate at iteration {checkpoint['meta']['iter'] + 1}"
        log_line(f"{place} is {groups[0]['lr']:.4g}, not {rate:.4g}")
