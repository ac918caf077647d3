"""Checks of the parts of a training loop: types that no registry has, schedules, values that cannot be meant."""

from collections.abc import Iterator
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS, OPTIMIZERS, PARAM_SCHEDULERS, TRANSFORMS, Registry
from mmengine.runner import IterBasedTrainLoop

from ..models import XCiT
from ..utils.configs import (
    backbone_class,
    channel_order,
    data_preprocessor,
    data_sets,
    loading_step,
    normalize_step,
    part_class,
    type_name,
)
from .findings import Finding, check, fail, note
from .images import has_own_steps, pipeline_step
from .weights import started_from

HIGH_RATE = 0.01  # of Adam and AdamW, ten times the highest of the recipes


def _schedulers(cfg: Config) -> list[dict]:
    given = cfg.get("param_scheduler") or []
    if isinstance(given, dict):  # one scheduler, or a list for each of several optimizers
        given = [given] if "type" in given else [each for several in given.values() for each in several]
    return [scheduler for scheduler in given if isinstance(scheduler, dict)]


def _parts(cfg: Config) -> Iterator[tuple[str, Any, Registry]]:
    """Yield the parts that mmengine builds, with their places and registries."""
    wrapper = cfg.get("optim_wrapper") or {}
    yield "optim_wrapper", wrapper, OPTIM_WRAPPERS
    yield "optim_wrapper.optimizer", wrapper.get("optimizer"), OPTIMIZERS
    yield "train_cfg", cfg.get("train_cfg"), LOOPS
    for scheduler in _schedulers(cfg):
        yield "param_scheduler", scheduler, PARAM_SCHEDULERS
    for name, hook in (cfg.get("default_hooks") or {}).items():
        yield f"default_hooks.{name}", hook, HOOKS
    for hook in cfg.get("custom_hooks") or []:
        yield "custom_hooks", hook, HOOKS
    for split in ("train", "val"):
        for dataset in data_sets(cfg, split):
            for step in dataset.get("pipeline") or []:
                yield f"the {split} pipeline", step, TRANSFORMS


@check("D294", "correct optimizer, schedulers, hooks and pipelines")
def check_parts(cfg: Config) -> Iterator[Finding]:
    """Check that registries have the types of the parts, and that torch accepts the workers."""
    for where, part, registry in _parts(cfg):
        if isinstance(part, dict) and part.get("type") and part_class(part, registry, cfg.default_scope) is None:
            fix = "correct the name, or import its module by custom_imports"
            yield fail("D208", f"no type {part['type']} is registered for {where}", fix)
    for split in ("train", "val"):
        loader = cfg.get(f"{split}_dataloader") or {}
        if loader.get("persistent_workers") and not loader.get("num_workers"):
            option = f"{split}_dataloader.persistent_workers"
            yield fail("D209", f"{option}=True without workers", f"--cfg-options {option}=False")


@check("D292", "correct optim_wrapper")
def check_optimizer(cfg: Config) -> Iterator[Finding]:
    """Check that the optimizer is not the SGD for ResNets of a base config, and its learning rate."""
    optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    kind = part_class(optimizer, OPTIMIZERS, cfg.default_scope)
    if backbone_class(cfg) is XCiT and kind is torch.optim.SGD:
        lr, decay = (6e-5, 0.01) if cfg.default_scope == "mmseg" else (1e-4, 0.05)
        text = f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets: the recipes of XCiT take AdamW"
        fix = f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr={lr}, weight_decay={decay}))"
        yield note("D205", text, fix)
    if kind is not None and kind.__name__ in ("Adam", "AdamW") and optimizer.get("lr", 0) >= HIGH_RATE:
        fix = "optim_wrapper.optimizer.lr=1e-4, as in the recipes"
        yield note("D210", f"{kind.__name__} with lr={optimizer['lr']}: the model may not learn", fix)


@check("D295", "correct train_cfg and param_scheduler")
def check_schedule(cfg: Config) -> Iterator[Finding]:
    """Compare the ends of schedules and the intervals of hooks with the length of training."""
    loop = cfg.get("train_cfg") or {}
    kind = part_class(loop, LOOPS, cfg.default_scope)
    iterations = loop.get("by_epoch") is False or (isinstance(kind, type) and issubclass(kind, IterBasedTrainLoop))
    unit = "iters" if iterations else "epochs"
    length = loop.get(f"max_{unit}")
    if not length:
        return
    counted = [each for each in _schedulers(cfg) if each.get("by_epoch", True) is not iterations]
    ends = [_end(each) for each in counted]
    by_epoch = (each for each in _schedulers(cfg) if each.get("by_epoch", True))
    if iterations and not all(each.get("convert_to_iter_based") for each in by_epoch):
        yield note("D211", "a scheduler counts epochs, a loop of iterations has one epoch", "by_epoch=False in it")
    checkpoint = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    if iterations and checkpoint.get("by_epoch", True):
        text = "the checkpoint hook counts epochs, a loop of iterations has one epoch"
        yield note("D211", text, "--cfg-options default_hooks.checkpoint.by_epoch=False")
    end = max(ends, default=0)
    last = type_name(counted[ends.index(end)]) if end else ""
    constant = last.startswith(("Linear", "Constant")) or "Step" in last  # the rate after them is meant to stay
    if end > 1.1 * length:
        yield note("D212", f"the schedule ends after {end:g} {unit}, training after {length}", "set both to one length")
    elif end < 0.9 * length and all(ends) and counted and not constant:
        text = f"the schedule ends after {end:g} {unit}, and the remaining {length - end:g} keep its last rate"
        yield note("D212", text, "set both to one length")
    interval = loop.get("val_interval", 1000 if iterations else 1)
    if cfg.get("val_dataloader") and interval > length:
        text = f"val_interval={interval} is longer than training, {length} {unit}: the model is tested only at the end"
        yield note("D213", text, "a shorter train_cfg.val_interval")


def _end(scheduler: dict) -> float:
    """Return the last epoch or iteration at which a scheduler changes the rate, or 0 if it has no end."""
    if scheduler.get("milestones"):
        return max(scheduler["milestones"])
    end = scheduler.get("end", scheduler.get("begin", 0) + scheduler.get("T_max", 0))
    return end if end < 1e9 else 0


@check("D296", "correct data_preprocessor and pipelines")
def check_input(cfg: Config, with_masks: bool) -> Iterator[Finding]:
    """Check that normalisation suits images of 0 to 255 and the weights, and that pipelines load annotations."""
    preprocessor = data_preprocessor(cfg)
    for dataset in data_sets(cfg, "train"):
        if has_own_steps(dataset) or not dataset.get("pipeline"):
            continue
        step = loading_step(dataset)
        given = preprocessor if preprocessor.get("mean") else normalize_step(dataset["pipeline"]) or {}
        mean, std = given.get("mean") or [0], given.get("std") or [1]
        if step and type_name(step) == "LoadImageFromFile" and 0 < max(mean) <= 1 and max(std) <= 1:
            fix = "multiply both by 255"
            yield note("D214", f"mean={mean} and std={std} are of images of 0 to 1, the images are of 0 to 255", fix)
        if cfg.default_scope == "mmdet":
            if "Annotation" not in str(dataset["pipeline"]):  # steps may hold steps
                yield note("D215", "the train pipeline has no LoadAnnotations", "LoadAnnotations(with_bbox=True)")
            elif with_masks and not (pipeline_step(dataset, "LoadAnnotations") or {}).get("with_mask", True):
                yield note("D215", "the model learns masks, LoadAnnotations has no with_mask", "with_mask=True in it")
    if cfg.model.backbone.get("ignore_padding") and preprocessor.get("mean"):
        for split in ("train", "test"):
            for dataset in data_sets(cfg, split):
                if pipeline_step(dataset, "Pad"):
                    text = f"the {split} pipeline pads before the normalisation: ignore_padding has no effect on it"
                    yield note("D217", text, "let the data_preprocessor pad, or put Normalize before Pad")
    published = [name for name in started_from(cfg) if name.startswith("xcit://")]
    if published and cfg.get("test_dataloader") and channel_order(cfg) == "BGR":
        text = f"{published[0]} was trained on RGB, the model gets BGR"
        yield note("D216", text, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
