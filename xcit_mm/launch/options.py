"""Options of a test, as the scripts of mmdet and mmseg have them."""

import argparse
import inspect

from mmengine.config import Config

from ..utils.configs import data_sets, evaluators, type_name
from .model import iter_parts


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
    is_segmentor = cfg.default_scope == "mmseg"
    if options.show_dir and cfg.default_scope == "mmpretrain":
        hook = dict(enable=True, out_dir=options.show_dir, interval=1)
        cfg.default_hooks.visualization.update(hook)
    elif options.show_dir:
        cfg.default_hooks.visualization.draw = True
        if is_segmentor:
            cfg.visualizer.save_dir = options.show_dir
        else:
            cfg.default_hooks.visualization.test_out_dir = options.show_dir
    if options.out and is_segmentor:
        for metric in evaluators(cfg, "test"):
            metric.update(output_dir=options.out, keep_results=True)
        for dataset in data_sets(cfg, "test"):
            _hide_reduced_labels(dataset["pipeline"])
    elif options.out:
        dump = "DumpDetResults" if cfg.default_scope == "mmdet" else "DumpResults"
        file = dict(type=dump, out_file_path=options.out)  # a pickle
        cfg.test_evaluator = [*evaluators(cfg, "test"), file]


def _hide_reduced_labels(pipeline: list) -> None:
    """Let mmseg write the numbers of classes, as `predict` does, without adding 1 to them."""
    from mmseg.datasets.transforms import PackSegInputs

    keys = inspect.signature(PackSegInputs).parameters["meta_keys"].default
    for step in iter_parts(pipeline):
        if type_name(step) == "PackSegInputs":
            shown = [key for key in step.get("meta_keys", keys) if key != "reduce_zero_label"]
            step["meta_keys"] = shown
