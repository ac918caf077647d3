"""Options of a training and of a test, as the scripts of mmdet and mmseg have them."""

import argparse
import inspect

from mmengine.config import Config
from mmengine.device import get_device

from ..utils.configs import data_sets, evaluators, type_name
from .model import iter_dicts, map_steps


def change_training(cfg: Config, options: argparse.Namespace) -> None:
    """Change a config by the options of a training. Raise ValueError if it has no place for one."""
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper.setdefault("type", "OptimWrapper")
    name = type_name(wrapper)
    if options.amp and name not in ("OptimWrapper", "AmpOptimWrapper", "CPUAmpOptimWrapper"):
        raise ValueError(f"--amp: optim_wrapper.type={wrapper['type']} has a precision of its own")
    if get_device() == "cpu" and (options.amp or name == "AmpOptimWrapper"):
        wrapper["type"] = "mmengine.CPUAmpOptimWrapper"  # in bfloat16
    elif options.amp:
        wrapper["type"] = "AmpOptimWrapper"
        wrapper.setdefault("loss_scale", "dynamic")
    if type_name(wrapper) == "AmpOptimWrapper" and wrapper.get("dtype") != "bfloat16":
        _check_float16(cfg.model)
    if options.auto_scale_lr:
        cfg.merge_from_dict({"auto_scale_lr.enable": True})


def _check_float16(model: Config) -> None:
    """Raise ValueError if a model does not train in float16."""
    # They divide the loss of masks by the number of masks times that of points, which overflows.
    broken = {"MaskFormerHead", "Mask2FormerHead"}
    found = broken & {type_name(part) for part in iter_dicts(model) if "type" in part}
    if found:
        problem = f"the loss of masks of {found.pop()} is 0 in float16"
        raise ValueError(f"{problem}: set optim_wrapper.dtype=bfloat16")


def change_test(cfg: Config, checkpoint: str, options: argparse.Namespace) -> None:
    """Change a config by the options of a test, and leave out its training. A config without a
    place for an option raises AttributeError.
    """
    cfg.load_from = checkpoint
    cfg.resume = False
    for name in ("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler"):
        cfg[name] = None
    if options.tta:
        cfg.model = dict(**cfg.tta_model, module=cfg.model)
        for dataset in data_sets(cfg, "test"):
            dataset["pipeline"] = cfg.tta_pipeline
    if options.show_dir:
        _draw_into(cfg, options.show_dir)
    if options.out and cfg.default_scope == "mmseg":
        for metric in evaluators(cfg, "test"):
            metric.update(output_dir=options.out, keep_results=True)
        for dataset in data_sets(cfg, "test"):
            dataset["pipeline"] = map_steps(dataset["pipeline"], _hide_reduced_labels)
    elif options.out:
        dump = "DumpDetResults" if cfg.default_scope == "mmdet" else "DumpResults"
        file = dict(type=dump, out_file_path=options.out)  # a pickle
        cfg.test_evaluator = [*evaluators(cfg, "test"), file]


def _hide_reduced_labels(step: dict) -> list[dict]:
    """Let mmseg write the numbers of classes, as `predict` does, without adding 1 to them."""
    if type_name(step) != "PackSegInputs":
        return [step]
    from mmseg.datasets.transforms import PackSegInputs

    keys = inspect.signature(PackSegInputs).parameters["meta_keys"].default
    keys = [key for key in step.get("meta_keys", keys) if key != "reduce_zero_label"]
    return [step | dict(meta_keys=keys)]


def _draw_into(cfg: Config, folder: str) -> None:
    """Draw predictions into a folder, by each library's hook."""
    hook = cfg.default_hooks.visualization
    if cfg.default_scope == "mmdet":
        hook.update(draw=True, test_out_dir=folder)
    elif cfg.default_scope == "mmseg":
        hook.draw = True
        cfg.visualizer.save_dir = folder
    else:
        hook.update(enable=True, out_dir=folder, interval=1)
