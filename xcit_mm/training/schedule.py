"""The schedule of a run that resumes: that of its config, which may have been edited since."""

import textwrap
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..utils.compat import SCHEDULER_STATE
from ..utils.configs import plain_values

# Parts of a config that determine a training, and keys in them that do not when it resumes.
_PARTS = (
    "model",
    "data_preprocessor",
    "train_dataloader",
    "train_cfg",
    "optim_wrapper",
    "param_scheduler",
    "auto_scale_lr",
)
_WITHOUT_EFFECT = {"init_cfg", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor"}


class CannotResume(ValueError):
    """A checkpoint does not fit the schedule or the optimizer of a config."""


def follow_config(runner: Runner, checkpoint: dict) -> None:
    """Give a checkpoint from which a run resumes the schedule and the optimizer's options of the
    config.

    They are those of a run that had the config from the start, and mmengine loads them. If they are
    unchanged, the checkpoint is left as it is. Each difference of the configs is logged.

    Models with several optimizers, and schedules that depend on scores, stay as in the checkpoint.

    Raises:
        CannotResume: If the run is longer than the config's, or its optimizer has other groups of
            parameters.
    """
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        is_complete(checkpoint, "epochs", runner.max_epochs)
    else:
        is_complete(checkpoint, "iters", runner.max_iters)
    for difference in _differences(runner, checkpoint["meta"]):
        print_log(f"the config was edited: {difference}", "current")
    schedulers = runner.param_schedulers or []
    depends_on_scores = any(hasattr(scheduler, "need_val_args") for scheduler in schedulers)
    if isinstance(runner.optim_wrapper, OptimWrapperDict) or depends_on_scores:
        print_log("schedule and optimizer's options stay as in the checkpoint", "current")
    elif "optimizer" in checkpoint and _is_edited(runner.optim_wrapper, schedulers, checkpoint):
        _advance(runner, schedulers, checkpoint["meta"])
        _replace(runner.optim_wrapper, schedulers, checkpoint)


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


def _differences(runner: Runner, meta: Mapping[str, Any]) -> Iterator[str]:
    """Describe the differences of the config from that of a checkpoint."""
    try:
        old = plain_values(meta.get("cfg", ""))
        new = plain_values(runner.cfg.pretty_text)
    except ValueError:  # a config of other values
        return
    for part in _PARTS:
        yield from _compare(part, old.get(part), new.get(part))


def _compare(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            if key not in _WITHOUT_EFFECT:
                yield from _compare(f"{name}.{key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, items in enumerate(zip(old, new, strict=True)):
            yield from _compare(f"{name}.{place}", *items)
    elif old != new:
        yield f"{name} {textwrap.shorten(repr(old), 60)} -> {textwrap.shorten(repr(new), 60)}"


def _saved_groups(checkpoint: dict) -> list[dict[str, Any]]:
    """Return the groups of an optimizer, and the one in which mmengine keeps the base rate."""
    state = checkpoint["optimizer"]
    base = state.get("base_param_settings")
    return [*state["param_groups"], *([base] if base else [])]


def _is_edited(wrapper: OptimWrapper, schedulers: list, checkpoint: dict) -> bool:
    """Whether the options of schedule or optimizer differ from those of a checkpoint."""
    groups = wrapper.param_groups
    saved_groups = _saved_groups(checkpoint)
    sizes = [len(group["params"]) for group in groups]
    if sizes != [len(group["params"]) for group in saved_groups]:
        problem = f"the optimizer has {len(groups)} groups of parameters, {len(saved_groups)}"
        fix = "undo the edit of its constructor, paramwise_cfg or frozen layers, or use load_from"
        raise CannotResume(f"{problem} in the checkpoint, or of other sizes: {fix}")
    scheduled = {"params", *(scheduler.param_name for scheduler in schedulers)}
    for group, saved in zip(groups, saved_groups, strict=True):
        if any(group[key] != saved.get(key) for key in group.keys() - scheduled):
            return True
    saved_schedulers = checkpoint.get("param_schedulers") or []
    options = [_options(scheduler.state_dict()) for scheduler in schedulers]
    return options != [_options(state) for state in saved_schedulers]


def _options(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in SCHEDULER_STATE}


def _advance(runner: Runner, schedulers: list, meta: Mapping[str, Any]) -> None:
    """Step new schedulers as often, and in the order, as in a run up to a checkpoint."""
    epochs = 0
    length = 1
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        epochs = meta["epoch"]
        length = len(runner.train_loop.dataloader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no steps
        for iteration in range(1, meta["iter"] + 1):
            _step(schedulers, by_epoch=False)
            if iteration % length == 0 and iteration // length <= epochs:
                _step(schedulers, by_epoch=True)
        for _ in range(meta["iter"] // length, epochs):  # of a larger batch
            _step(schedulers, by_epoch=True)


def _step(schedulers: list, by_epoch: bool) -> None:
    for scheduler in schedulers:
        if scheduler.by_epoch == by_epoch:
            scheduler.step()


def _replace(wrapper: OptimWrapper, schedulers: list, checkpoint: dict) -> None:
    """Replace the options of an optimizer, and its schedule, in a checkpoint."""
    rate = checkpoint["optimizer"]["param_groups"][0]["lr"]
    for group, saved in zip(wrapper.param_groups, _saved_groups(checkpoint), strict=True):
        saved.update({key: value for key, value in group.items() if key != "params"})
    checkpoint["param_schedulers"] = [scheduler.state_dict() for scheduler in schedulers]
    new_rate = checkpoint["optimizer"]["param_groups"][0]["lr"]
    place = f"the rate at iteration {checkpoint['meta']['iter'] + 1}"
    print_log(f"{place} is {new_rate:.4g}, not {rate:.4g}", "current")
