"""The doctor: failures of a training run and notes about it, before the run has cost anything."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mmengine.registry
import torch
from mmengine.config import Config
from mmengine.registry import METRICS, OPTIMIZERS, Registry, init_default_scope
from torch import nn

from ..models.backbone import XCiT
from ..utils.configs import backbone_class, data_preprocessor, evaluators, part_class, read_config, type_name
from ..utils.errors import reason
from .data import SPLITS, check_classes, check_data_sets, data_sets
from .findings import Finding, fail, guard, note, ok
from .launch import find_script
from .model import build_model, check_channels, check_norms, check_weights, class_heads
from .preflight import asks_for_amp, check_backbone

__all__ = ["diagnose"]


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run: data, model, weights, and what this machine makes of them.

    The number of processes is `WORLD_SIZE`, or 1.

    Args:
        config: Path of a config of mmdet or mmseg.
        argv: A command line, of which `--cfg-options` is taken.
    """
    try:
        cfg = read_config(config, argv)
        find_script(cfg, config, "train")
    except Exception as error:  # a config is a program
        yield fail("D201", reason(error), "correct the config")
        return
    yield from guard(_check_imports(cfg), "D290", "correct custom_imports")
    init_default_scope(cfg.default_scope)
    try:
        check_backbone(cfg)
        model = build_model(cfg)
    except Exception as error:
        yield fail("D601", f"the model cannot be built: {reason(error)}", "correct the model in the config")
        model = nn.Module()
    else:
        yield ok(f"{type_name(cfg.model)} can be built")

    heads = class_heads(model)
    batch_size = (cfg.get("train_dataloader") or {}).get("batch_size", 1)
    given = os.environ.get("WORLD_SIZE") or "1"
    processes = int(given) if given.isdecimal() else 0
    if processes < 1:
        yield fail("D203", f"WORLD_SIZE={given} is not a number of processes", "set it to 1 or more, or unset it")
        processes = 1
    yield from guard(check_classes(cfg, heads), "D390", "correct the data sets in the config")
    for split in SPLITS:
        yield from guard(check_data_sets(cfg, split, heads), "D391", f"correct the {split} data set")
    yield from guard(_check_ignored_labels(cfg, heads), "D590", "correct ignore_index")
    if isinstance(getattr(model, "backbone", None), XCiT):
        yield from guard(check_channels(cfg, model), "D690", "correct neck and heads")
        yield from guard(check_weights(cfg, model), "D790", "correct init_cfg and load_from")
    yield from guard(_check_batch(cfg, batch_size, processes), "D291", "correct train_dataloader.batch_size")
    yield from guard(_check_optimizer(cfg), "D292", "correct optim_wrapper")
    yield from guard(check_norms(model, batch_size, processes), "D691", "correct norm_cfg")
    yield from guard(_check_machine(cfg, config, model), "D293", "correct work_dir")


def _check_imports(cfg: Config) -> Iterator[Finding]:
    """Check that a config which names parts of xcit_mm imports it, as the tools here do without being asked."""
    ours = {
        name: (registry, part)
        for registry in vars(mmengine.registry).values()
        if isinstance(registry, Registry)
        for name, part in registry.module_dict.items()
        if part.__module__.partition(".")[0] == "xcit_mm"
    }
    named = []
    for kind in sorted(set(_types(cfg.to_dict()))):
        registry, part = ours.get(kind.rpartition(".")[2], (None, None))
        if registry and part_class(dict(type=kind), registry, cfg.default_scope) is part:
            named.append(kind)
    given = (cfg.get("custom_imports") or {}).get("imports") or []
    modules = [given] if isinstance(given, str) else list(given)
    if named and not _brings_xcit_mm(modules):
        yield fail(
            "D202",
            f"custom_imports lacks xcit_mm: without it mmdet and mmseg do not find {named[-1]} in the registry",
            'custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)',
        )


def _types(part: object) -> Iterator[str]:
    """Every `type` in a config."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for one in part:
            yield from _types(one)


def _brings_xcit_mm(modules: Sequence[str]) -> bool:
    """Whether one of these modules is, or imports, xcit_mm, which a new Python process finds out."""
    if any(module.partition(".")[0] == "xcit_mm" for module in modules):
        return True
    if not modules:
        return False
    code = f"import sys, {', '.join(modules)}; sys.exit('xcit_mm' not in sys.modules)"
    path = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    return subprocess.run([sys.executable, "-c", code], env=path, capture_output=True).returncode == 0


def _check_ignored_labels(cfg: Config, heads: dict[str, nn.Module]) -> Iterator[Finding]:
    """Check that heads, padding, pipelines and scores ignore the same label."""
    given: dict[str, Any] = {
        f"{name}.ignore_index": getattr(head, "ignore_index", None) for name, head in heads.items()
    }
    given = {name: label for name, label in given.items() if label is not None}
    if not given:
        return
    given["data_preprocessor.seg_pad_val"] = data_preprocessor(cfg).get("seg_pad_val", 255)
    for split in SPLITS:
        for dataset in data_sets(cfg, split):
            for step in dataset.get("pipeline", []):
                given |= {
                    f"{type_name(step)}.{key}": step[key] for key in ("ignore_index", "seg_pad_val") if key in step
                }
        for evaluator in evaluators(cfg, split):
            kind = part_class(evaluator, METRICS, cfg.default_scope)
            if kind is not None and kind.__name__ == "IoUMetric":  # mmseg's
                given[f"{split}_evaluator.ignore_index"] = evaluator.get("ignore_index", 255)
    if len(set(given.values())) > 1:
        yield fail(
            "D509",
            f"unlabelled pixels have different labels: {', '.join(f'{name}={label}' for name, label in given.items())}",
            "set all of these to the label of the segmentation maps",
        )
    yield ok(f"label {min(given.values())} is ignored everywhere")


def _check_batch(cfg: Config, batch_size: int, processes: int) -> Iterator[Finding]:
    """Compare the batch over all processes with the batch of the learning rate."""
    scaling = cfg.get("auto_scale_lr") or {}
    batch = batch_size * processes
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        yield note(
            "D204",
            f"{batch} images a step over {processes} process(es), the learning rate is for {base} images",
            "--auto-scale-lr (mmdet), --cfg-options auto_scale_lr.enable=True (both)",
        )
    yield ok(f"{batch} images a step")


def _check_optimizer(cfg: Config) -> Iterator[Finding]:
    """Check that the optimizer is not a base config's SGD for ResNets."""
    optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    if backbone_class(cfg) is XCiT and part_class(optimizer, OPTIMIZERS, cfg.default_scope) is torch.optim.SGD:
        lr, decay = (6e-5, 0.01) if cfg.default_scope == "mmseg" else (1e-4, 0.05)
        yield note(
            "D205",
            f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets: the recipes of XCiT take AdamW",
            f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr={lr}, weight_decay={decay}))",
        )


def _check_machine(cfg: Config, config: str, model: nn.Module) -> Iterator[Finding]:
    """Check mixed precision and disk space against this machine, which need not be the one of the run."""
    if asks_for_amp(cfg) and not torch.cuda.is_available():
        fix = "--cfg-options optim_wrapper.type=OptimWrapper"
        yield note("D206", "mixed precision needs a GPU, and this machine has none", fix)
    work_dir = Path(cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    existing = next(path for path in (work_dir.absolute(), *work_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    # Weights and Adam's two moments, float32.
    needed = 12e-9 * sum(p.numel() for p in model.parameters())
    text = f"{free:.1f} GB free for {work_dir}, a checkpoint takes about {needed:.1f}"
    if free < 2 * needed:
        yield fail("D207", text, "--work-dir on another disk, and default_hooks.checkpoint.max_keep_ckpts=1")
    yield ok(text)
