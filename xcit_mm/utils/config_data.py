"""Data sets of a config: where they are, and the names of their classes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS

from .config_parts import part_class, type_name


def evaluators(cfg: Config, split: str) -> list[dict]:
    """List the evaluators of a split."""
    configs = cfg.get(f"{split}_evaluator") or []
    if isinstance(configs, dict):
        configs = configs.get("metrics") or configs  # of mmengine's Evaluator, or one metric
    return [configs] if isinstance(configs, dict) else configs


def data_sets(cfg: Config, split: str) -> Iterator[dict]:
    """Iterate over the data sets of a split, without their wrappers."""
    dataset = (cfg.get(f"{split}_dataloader") or {}).get("dataset")
    parts = [dataset] if dataset else []
    while parts:
        part = parts.pop(0)
        # RepeatDataset has the first key, ConcatDataset the second.
        wrapped = [part["dataset"]] if "dataset" in part else part.get("datasets")
        if wrapped is None:
            yield part
        parts = [*(wrapped or ()), *parts]


def dataset_class(dataset: dict) -> type[Any]:
    """Return the class of a data set, or raise ValueError if it is not registered."""
    registered = part_class(dataset, DATASETS)
    if registered is None:
        fix = "correct it, install its library, or name its module in custom_imports"
        raise ValueError(f"dataset.type={dataset.get('type')!r} is not registered: {fix}")
    return registered


def metainfo(dataset: dict) -> dict[str, Any]:
    """Return classes, palette and other metainfo of a data set, as its class and config say."""
    info = dict(dataset_class(dataset).METAINFO)
    for key, value in (dataset.get("metainfo") or {}).items():
        # In mmengine too, a string may be the path of a file with one item per line.
        is_file = isinstance(value, str) and Path(value).is_file()
        info[key] = list_from_file(value) if is_file else value
    return info


def tested_dataset(cfg: Config) -> dict:
    """Return the first data set that a config tests on, or raise ValueError without one."""
    for dataset in data_sets(cfg, "test"):
        return dataset
    fix = "give it one, since its pipeline preprocesses images"
    raise ValueError(f"the config has no test_dataloader: {fix}")


def tested_metainfo(cfg: Config) -> dict[str, Any]:
    """Return the `metainfo` of the tested data set, with a class for each label of the model.

    A segmentor of one class separates it from the background, which is label 0.

    Raises:
        ValueError: If the data set has no classes.
    """
    dataset = dict(_scope_=cfg.get("default_scope")) | tested_dataset(cfg)
    info = metainfo(dataset)
    classes = info.get("classes")
    if not classes or isinstance(classes, str):
        problem = f"classes={classes!r} in the {type_name(dataset)} that the config tests on"
        raise ValueError(f"{problem}: give it metainfo=dict(classes=('name', ...))")
    if cfg.get("default_scope") == "mmseg" and len(classes) == 1:
        info["classes"] = ("background", *classes)
    return info
