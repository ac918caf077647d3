"""Configs of mmdet, mmseg and mmpretrain: reading, and facts of their models and data sets."""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS, MODELS, Registry
from mmengine.runner import Runner

from .compat import find_bases_by_package
from .errors import ArgumentError, reason
from .output import say

# What runners, the libraries' scripts and this package read of a config.
_READ_KEYS = {
    *inspect.signature(Runner.__init__).parameters,
    *("activation_checkpointing", "compile", "custom_imports", "efficient_conv_bn_eval"),
    *("find_unused_parameters", "init_weights_for_test_or_val", "model_wrapper_cfg", "raster"),
    *("runner_type", "source", "strategy", "sync_bn", "tta_model", "tta_pipeline"),
}


def read_config(config: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config. Its bases may be `PACKAGE::CONFIG` of this package, mmdet and mmseg.

    Args:
        options: Values by dotted key, such as `{"model.backbone.arch": "t12"}`, that replace those
            of the config. A line names each new key.

    Raises:
        ValueError: If it is no file or no config, has an error, also in a base, or has no model, or
            if no part of a run has the name of an option.
    """
    try:
        with find_bases_by_package():
            cfg = Config.fromfile(config)
    except Exception as error:  # a config is a program
        raise ValueError(f"{config} cannot be read: {reason(error)}") from None
    if not cfg.get("model"):
        raise ValueError(f"{config} has no model: give the config of a whole run")
    check_keys(options or ())
    for key in options or ():
        if "." in key and not key.endswith("._delete_") and not _has_key(cfg, key):
            say(f"new key in the config: {key}")
    if options:
        cfg.merge_from_dict(dict(options))
    return cfg


def check_keys(options: Iterable[str]) -> None:
    """Raise ArgumentError if no part of a run has the name of an option, a dotted key."""
    for key in options:
        if key.partition(".")[0] not in _READ_KEYS:  # mistyped, or a variable that parts copy
            fix = "give a whole key, such as train_cfg.max_iters"
            raise ArgumentError("cfg_options", f"no part of a run has the name {key}: {fix}")


def iter_parts(config: Any) -> Iterator[dict]:
    """Iterate over the parts of a config, dicts with a type, also inside of others."""
    if isinstance(config, dict):
        if "type" in config:
            yield config
            if type_name(config) == "Albu":  # its steps are those of albumentations
                return
        config = list(config.values())
    if isinstance(config, list | tuple):
        for inner in config:
            yield from iter_parts(inner)


def _has_key(cfg: Config, key: str) -> bool:
    value: Any = cfg
    try:
        for name in key.split("."):
            value = value[int(name) if name.isdigit() else name]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def evaluators(cfg: Config, split: str) -> list[dict]:
    """List the evaluators of a split."""
    configs = cfg.get(f"{split}_evaluator") or []
    return [configs] if isinstance(configs, dict) else configs


def data_sets(cfg: Config, split: str) -> Iterator[dict]:
    """Iterate over the data sets of a split, if it has any, inside of wrappers."""
    dataset = (cfg.get(f"{split}_dataloader") or {}).get("dataset")
    parts = [dataset] if dataset else []
    while parts:
        part = parts.pop(0)
        # Of RepeatDataset, or of ConcatDataset.
        wrapped = [part["dataset"]] if "dataset" in part else part.get("datasets")
        if wrapped is None:
            yield part
        parts = [*(wrapped or ()), *parts]


def type_name(part: dict) -> str:
    """Return the name of a part's type without its scope. A pure Python config has a class."""
    part_type = part["type"]
    return part_type.rpartition(".")[2] if isinstance(part_type, str) else part_type.__name__


def part_class(part: dict, registry: Registry, scope: str | None = None) -> type[Any] | None:
    """Return the class of a part of a config, or None if it is not registered in the scope, by
    default the current one. mmpretrain has an XCiT of its own.
    """
    name = part.get("type")
    if not isinstance(name, str):
        return name  # a class, or None without a type
    with registry.switch_scope_and_registry(part.get("_scope_", scope)) as scoped:
        return scoped.get(name)


def backbone_class(cfg: Config) -> type[Any] | None:
    """Return the class of a config's backbone, or None if none is registered."""
    return part_class(cfg.get("model", {}).get("backbone") or {}, MODELS, cfg.get("default_scope"))


def dataset_class(dataset: dict) -> type[Any]:
    """Return the class of a data set's config, or raise ValueError."""
    registered = part_class(dataset, DATASETS)
    if registered is None:
        fix = "correct it, install its library, or name its module in custom_imports"
        raise ValueError(f"dataset.type={dataset.get('type')!r} is not registered: {fix}")
    return registered


def metainfo(dataset: dict) -> dict[str, Any]:
    """Return classes, palette and other metainfo of a data set's class, updated by its config."""
    info = copy.deepcopy(dataset_class(dataset).METAINFO)
    for key, value in (dataset.get("metainfo") or {}).items():
        # As in mmengine, a string may be the path of a file with one item per line.
        is_file = isinstance(value, str) and Path(value).is_file()
        info[key] = list_from_file(value) if is_file else value
    return info


def tested_dataset(cfg: Config) -> dict:
    """Return the config of the first data set that a config tests on."""
    for dataset in data_sets(cfg, "test"):
        return dataset
    problem = "the config has no test_dataloader, whose pipeline preprocesses images"
    raise ValueError(f"{problem}: give it one")


def tested_metainfo(cfg: Config) -> dict[str, Any]:
    """Return the `metainfo` of the tested data set, with a class for each label of the model. A
    segmentor of one class separates it from the background, label 0.
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


def loading_step(pipeline: Sequence[dict]) -> dict | None:
    """Return the first step of a pipeline that loads an image, or None."""
    for step in pipeline:
        name = type_name(step)
        if name.startswith("Load") and "Annotation" not in name:
            return step
    return None


def find_step(pipeline: Sequence[dict], name: str) -> dict | None:
    """Return the first step of a pipeline with a type of this name, or None."""
    return next((step for step in pipeline if type_name(step) == name), None)


class ModelInput:
    """How the test pipeline and the data preprocessor of a config turn an image file into input.

    Attributes:
        pipeline, loading, preprocessor: Configs of all steps, of that which loads an image or None,
            and of the preprocessor, {} without one.
        channels: Number of channels of the backbone.

    Raises:
        ValueError: If the config tests on no data set.
    """

    def __init__(self, cfg: Config) -> None:
        self.pipeline: Sequence[dict] = tested_dataset(cfg).get("pipeline", [])
        self.loading = loading_step(self.pipeline)
        own = cfg.model.get("data_preprocessor", cfg.get("data_preprocessor"))  # as Runner does
        self.preprocessor: dict = own or {}
        self.channels: int = (cfg.model.get("backbone") or {}).get("in_channels", 3)

    @property
    def raster_step(self) -> dict | None:
        """The step that loads rasters, or None if OpenCV loads images."""
        return find_step(self.pipeline, "LoadRasterFromFile")

    @property
    def bands(self) -> int | None:
        """Number of bands of a raster, or None if OpenCV loads images."""
        if self.raster_step is None:
            return None
        bands = self.raster_step.get("bands")
        return len(bands) if bands else self.channels

    @property
    def side(self) -> int | None:
        """Shorter side in pixels that the first Resize gives, else of the crops in training, `size`
        of mmseg's preprocessor, or None.
        """
        scales = [step.get("scale") for step in self.pipeline if type_name(step) == "Resize"]
        size = next(filter(None, scales), self.preprocessor.get("size"))
        return min(size) if isinstance(size, Sequence) else size

    @property
    def normalisation(self) -> tuple[list[float] | None, list[float] | None]:
        """Mean and standard deviation by which the preprocessor or a step normalises."""
        step = self.preprocessor
        if step.get("mean") is None:
            step = find_step(self.pipeline, "Normalize") or {}
        return step.get("mean"), step.get("std")

    @property
    def channel_order(self) -> str:
        """Order of the channels: 'RGB', 'BGR', or 'as STEP gives them'."""
        step = self.loading or dict(type="LoadImageFromFile")
        name = type_name(step)
        if name != "LoadImageFromFile" or self.channels != 3:
            options = ", ".join(f"{key}={value!r}" for key, value in step.items() if key != "type")
            return f"as {name}({options}) gives them"
        # mmcv loads BGR. Two swaps give BGR again.
        swaps = any(self.preprocessor.get(key) for key in ("bgr_to_rgb", "rgb_to_bgr"))
        normalize = find_step(self.pipeline, "Normalize") or dict(to_rgb=False)
        return "RGB" if swaps != normalize.get("to_rgb", True) else "BGR"
