"""Configs of mmdet, mmseg and mmpretrain: how one is read, and questions asked of it."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction
from mmengine.registry import DATASETS, MODELS, Registry

from .errors import reason

__all__ = [
    "SUFFIXES",
    "backbone_class",
    "channel_order",
    "data_preprocessor",
    "dataset_class",
    "evaluators",
    "leaf_datasets",
    "loading_step",
    "metainfo",
    "normalisation",
    "normalize_step",
    "part_class",
    "raster_bands",
    "raster_step",
    "read_config",
    "takes_rgb",
    "tested_metainfo",
    "type_name",
]

SUFFIXES = (".py", ".json", ".yaml", ".yml")
"""How the name of a config ends: what mmengine reads."""


class _Options(DictAction):
    """mmengine's `--cfg-options`, whose errors do not name the value."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        for one in values:
            try:
                super().__call__(parser, namespace, [one], option)
            except (ValueError, AssertionError):
                raise ValueError(
                    f"--cfg-options {one}: write KEY=VALUE, with a bracket closed for each opened"
                ) from None


def read_config(config: str, argv: list[str]) -> Config:
    """The config at a path, with the `--cfg-options` of a command line.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is no config, or an error is in it, in one that it is based on or in the options.
    """
    if not config.endswith(SUFFIXES):
        raise ValueError(f"{config} is no config, whose name ends in .py: the config comes before the checkpoint")
    if not Path(config).is_file():
        raise FileNotFoundError(f"no config at {config}: see configs/")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cfg-options", nargs="+", action=_Options, default={})
    options, _ = parser.parse_known_args(argv)
    try:
        cfg = Config.fromfile(config)
        cfg.merge_from_dict(options.cfg_options)
    except SyntaxError as error:  # mmengine does not tell the file, which may be one of the bases
        where = f"line {error.lineno}: {(error.text or '').strip()}"
        raise ValueError(f"{config} cannot be read: {error.msg} in {where}") from None
    except Exception as error:  # a config is a program
        raise ValueError(f"{config} cannot be read: {reason(error)}") from None
    if not cfg.get("model"):
        raise ValueError(f"{config} has no model: give the config of a whole run")
    return cfg


def evaluators(cfg: Config, split: str) -> list[dict]:
    """The evaluators of a split, of which a config may give one, several or none."""
    given = cfg.get(f"{split}_evaluator") or []
    return [given] if isinstance(given, dict) else given


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """The data sets inside wrappers such as RepeatDataset and ConcatDataset."""
    inner = [dataset["dataset"]] if "dataset" in dataset else dataset.get("datasets")
    if inner is None:
        yield dataset
    else:
        for one in inner:
            yield from leaf_datasets(one)


def type_name(part: dict) -> str:
    """The name of a part's type, which is a name, `scope.name`, or in a pure Python config a class or function."""
    kind = part["type"]
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def part_class(part: dict, registry: Registry, scope: str | None = None) -> type[Any] | None:
    """The class of a part of a config, which its name alone does not tell: mmpretrain has an XCiT of its own.

    Args:
        part: With a `type`: a name, `scope.name` or a class.
        registry: mmengine's, of such parts.
        scope: The config's; default: the current one.

    Returns:
        None if there is none of this type.
    """
    kind = part.get("type")
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(part.get("_scope_", scope)) as found:
        return found.get(kind)


def backbone_class(cfg: Config) -> type[Any] | None:
    """The class of a config's backbone, if it has one that is registered."""
    return part_class(cfg.get("model", {}).get("backbone") or {}, MODELS, cfg.get("default_scope"))


def dataset_class(dataset: dict) -> type[Any]:
    """The class of a data set's config.

    Raises:
        ValueError: If there is none of its type.
    """
    found = part_class(dataset, DATASETS)
    if found is None:
        raise ValueError(
            f"no data set of type {type_name(dataset)} is registered: correct it, or name its module in custom_imports"
        )
    return found


def metainfo(dataset: dict) -> dict[str, Any]:
    """Classes, palette and the like of a data set's config, completed from its class."""
    return dataset_class(dataset)._load_metainfo(dataset.get("metainfo"))


def tested_dataset(cfg: Config) -> dict:
    """What a config tests on; of several data sets, the first.

    Raises:
        ValueError: If it tests on nothing.
    """
    if not cfg.get("test_dataloader"):
        raise ValueError("the config has no test_dataloader, which says how images are prepared: give it one")
    return next(leaf_datasets(cfg.test_dataloader.dataset))


def _tested_pipeline(cfg: Config) -> Sequence[dict]:
    return tested_dataset(cfg).get("pipeline", [])


def tested_metainfo(cfg: Config) -> dict[str, Any]:
    """`metainfo` of what a config tests on: a class and, where it has a palette, a colour for each label of the model.

    A segmentor of one class tells it from the rest, which is label 0 and called background.

    Raises:
        ValueError: If it tests on nothing, or on a data set that is not registered or has no classes.
    """
    dataset = dict(_scope_=cfg.get("default_scope")) | tested_dataset(cfg)
    found = metainfo(dataset)
    classes, palette = found.get("classes"), found.get("palette")
    if not classes or isinstance(classes, str):
        raise ValueError(
            f"classes={classes!r} in the {type_name(dataset)} that the config tests on: "
            "give it metainfo=dict(classes=('name', ...))"
        )
    if cfg.get("default_scope") == "mmseg" and len(classes) == 1:
        found["classes"] = ("background", *classes)
        if isinstance(palette, Sequence) and len(palette) == 1:
            found["palette"] = [(0, 0, 0), *palette]
    return found


def loading_step(dataset: dict) -> dict | None:
    """The step that loads the image, by whatever loader: the first that loads something else than annotations."""
    names = ((step, type_name(step)) for step in dataset.get("pipeline", []))
    return next((step for step, name in names if name.startswith("Load") and "Annotation" not in name), None)


def raster_step(cfg: Config) -> dict | None:
    """The step by which a config's test pipeline loads rasters, all values as they are; None if it loads pictures."""
    step = loading_step(tested_dataset(cfg))
    return step if step and type_name(step) == "LoadRasterFromFile" else None


def raster_bands(cfg: Config) -> int | None:
    """How many bands a config's test pipeline loads of a raster; None if it loads pictures.

    Unless the step names them, as many as the backbone takes.
    """
    step = raster_step(cfg)
    if step is None:
        return None
    bands = step.get("bands")
    return len(bands) if bands else cfg.model.backbone.get("in_channels", 3)


def data_preprocessor(cfg: Config) -> dict:
    """A config's data preprocessor: the model's own, or else the one beside the model, as mmengine's Runner does."""
    return cfg.model.get("data_preprocessor", cfg.get("data_preprocessor")) or {}


def image_side(cfg: Config) -> int | None:
    """The side in pixels of a square that a config's test pipeline leaves as it is; None if the config does not say.

    Without a step that resizes, the size of the crops that the data preprocessor trains on.
    """
    pipeline = _tested_pipeline(cfg)
    sizes = [step["scale"] for step in pipeline if type_name(step) == "Resize" and step.get("scale")]
    size = sizes[0] if sizes else data_preprocessor(cfg).get("size")
    return min(size) if isinstance(size, Sequence) else size


def channel_order(cfg: Config) -> str:
    """In which order a config's model takes the channels of an image: 'RGB' or 'BGR', or as which step loads them."""
    step = loading_step(tested_dataset(cfg)) or dict(type="LoadImageFromFile")
    name = type_name(step)
    if name != "LoadImageFromFile" or cfg.model.backbone.get("in_channels", 3) != 3:
        options = ", ".join(f"{key}={value!r}" for key, value in step.items() if key != "type")
        return f"as {name}({options}) gives them"
    return "RGB" if takes_rgb(cfg) else "BGR"


def takes_rgb(cfg: Config) -> bool:
    """Whether a config's model sees images as RGB: mmcv reads BGR, and the preprocessor or a step may swap it."""
    preprocessor = data_preprocessor(cfg)
    step = normalize_step(_tested_pipeline(cfg)) or dict(to_rgb=False)
    swaps = bool(preprocessor.get("bgr_to_rgb") or preprocessor.get("rgb_to_bgr"))
    return swaps != step.get("to_rgb", True)


def normalisation(cfg: Config) -> tuple[list[float] | None, list[float] | None]:
    """Mean and std by which a config normalises images, in the data preprocessor or in a step of the test pipeline."""
    preprocessor = data_preprocessor(cfg)
    step = normalize_step(_tested_pipeline(cfg))
    given = preprocessor if preprocessor.get("mean") is not None else step or {}
    return given.get("mean"), given.get("std")


def normalize_step(pipeline: Sequence[dict]) -> dict | None:
    """The step of a pipeline that normalises, or None."""
    return next((step for step in pipeline if type_name(step) == "Normalize"), None)
