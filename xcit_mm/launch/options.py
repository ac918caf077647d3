"""Options of a training and of a test, as the scripts of mmdet, mmseg and mmpretrain have them."""

import argparse

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.evaluator import DumpResults
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import Runner

from ..training import CPUAmpOptimWrapper
from ..utils.configs import data_sets, evaluators, part_class


def change_training(cfg: Config, options: argparse.Namespace) -> None:
    """Change a config by the options of a training.

    Raises:
        ValueError: If the config has no place for an option.
    """
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper_class = OptimWrapper
    if "type" in wrapper:
        wrapper_class = part_class(wrapper, OPTIM_WRAPPERS, cfg.default_scope)
    if options.amp and wrapper_class not in (OptimWrapper, AmpOptimWrapper, CPUAmpOptimWrapper):
        problem = f"optim_wrapper.type={wrapper['type']} has a precision of its own"
        raise ValueError(f"--amp: {problem}: leave out --amp")
    if get_device() == "cpu" and (options.amp or wrapper_class is AmpOptimWrapper):
        wrapper["type"] = "mmengine.CPUAmpOptimWrapper"  # in bfloat16
    elif options.amp:
        wrapper["type"] = "AmpOptimWrapper"
        wrapper.setdefault("loss_scale", "dynamic")
    if options.auto_scale_lr:
        if "base_batch_size" not in (cfg.get("auto_scale_lr") or {}):
            fix = "set it to the number of images that the learning rate is for"
            raise ValueError(f"--auto-scale-lr: the config has no base_batch_size: {fix}")
        cfg.auto_scale_lr.enable = True
    _set_loaders(cfg)


def change_test(cfg: Config, checkpoint: str, options: argparse.Namespace) -> None:
    """Change a config by the options of a test, and leave out its training.

    Raises:
        ValueError: If the config has no place for an option.
    """
    cfg.load_from = checkpoint
    cfg.resume = False
    for name in ("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler"):
        cfg[name] = None
    _set_loaders(cfg)
    if options.tta:
        if not ("tta_model" in cfg and "tta_pipeline" in cfg):
            example = "mmdet::retinanet/retinanet_tta.py and mmseg's configs have them"
            raise ValueError(f"--tta: the config has no tta_model and tta_pipeline: {example}")
        cfg.model = dict(**cfg.tta_model, module=cfg.model)
        for dataset in data_sets(cfg, "test"):
            dataset["pipeline"] = cfg.tta_pipeline
    if options.show_dir:
        _set_drawing(cfg, options.show_dir)
    if options.out and cfg.default_scope == "mmseg":
        for metric in evaluators(cfg, "test"):
            metric.update(output_dir=options.out, keep_results=True)
    elif options.out and not options.out.endswith((".pkl", ".pickle")):
        raise ValueError(f"--out {options.out}: predictions are written into a file *.pkl")


def _set_loaders(cfg: Config) -> None:
    """Set what mmpretrain's scripts add to the loaders of its configs."""
    names = ("train_dataloader", "val_dataloader", "test_dataloader")
    for loader in filter(None, map(cfg.get, names)):
        if cfg.default_scope == "mmpretrain":
            loader.setdefault("collate_fn", dict(type="default_collate"))
            loader.setdefault("pin_memory", True)
            loader.setdefault("persistent_workers", loader.get("num_workers", 0) > 0)


def _set_drawing(cfg: Config, folder: str) -> None:
    """Draw predictions into a folder, by each library's hook."""
    hook = (cfg.get("default_hooks") or {}).get("visualization")
    if not hook:
        raise ValueError("--show-dir: default_hooks.visualization is missing: set the library's")
    if cfg.default_scope == "mmdet":
        hook.update(draw=True, test_out_dir=folder)
    elif cfg.default_scope == "mmseg":
        hook.draw = True
        cfg.visualizer.save_dir = folder
    else:
        hook.update(enable=True, out_dir=folder, interval=1)


def dump_results(runner: Runner, file: str) -> None:
    """Let a test of a detector or classifier write its predictions into a pickle file."""
    if runner.cfg.default_scope == "mmdet":
        from mmdet.evaluation import DumpDetResults

        runner.test_evaluator.metrics.append(DumpDetResults(out_file_path=file))
    elif runner.cfg.default_scope == "mmpretrain":
        runner.test_evaluator.metrics.append(DumpResults(out_file_path=file))
