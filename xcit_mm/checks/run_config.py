"""What a config says about the data of a run, read in this place."""

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, TRANSFORMS

from ..datasets import Image, Split
from ..datasets.coco_json import CocoJson, read_coco
from ..utils.configs import (
    ModelInput,
    data_sets,
    dataset_class,
    evaluators,
    find_step,
    loading_step,
    metainfo,
    part_class,
)
from ..weights import StrictLoadHook

_LIBRARIES = {"mmcv", "mmseg", "xcit_mm"}


class ConfiguredData:
    """A data set of a config.

    Attributes:
        read_json: Function that reads a COCO json exactly as mmdet, once in a run.
        annotation_step: The step that loads annotations, empty without one.
    """

    def __init__(self, options: dict[str, Any], read_json: Callable[[str], CocoJson]) -> None:
        self.options = options
        self.read_json = read_json
        self.pipeline = options.get("pipeline", [])
        self.loading = loading_step(self.pipeline) or dict(type="LoadImageFromFile")
        self.annotation_step = find_step(self.pipeline, "LoadAnnotations") or {}
        self._root = options.get("data_root") or ""
        self._prefix = options.get("data_prefix") or {}
        self.json_path = os.path.realpath(os.path.join(self._root, options.get("ann_file") or ""))

    @cached_property
    def paths(self) -> list[str]:
        """Paths of the data set's folders and annotation file, as mmengine joins them."""
        folders = self._prefix.values() if isinstance(self._prefix, dict) else [self._prefix]
        parts = [part for part in [*folders, self.options.get("ann_file")] if part]
        joined = [part if "://" in part else os.path.join(self._root, part) for part in parts]
        return [self._root, *joined] if self._root else joined

    @cached_property
    def reader(self) -> str:
        """Name of the class whose `load_data_list` reads the files."""
        registered = dataset_class(self.options)
        return getattr(registered, "load_data_list", dict).__qualname__.partition(".")[0]

    @property
    def data_format(self) -> str:
        """'COCO', 'maps', or '' for other formats and files on a server."""
        api: Any = getattr(dataset_class(self.options), "COCOAPI", None)
        if any("://" in path for path in self.paths):
            return ""
        if self.reader == "CocoDataset" and api.__name__ == "COCO":  # not panoptic
            return "COCO"
        return "maps" if self.reader == "BaseSegDataset" else ""

    @cached_property
    def classes(self) -> Any:
        """Names of its classes; None or a text by mistake."""
        return metainfo(self.options).get("classes")

    @property
    def has_own_step(self) -> bool:
        """Whether no known transform loads the maps, or one of another library may change them."""
        classes = [part_class(step, TRANSFORMS) for step in self.pipeline]
        libraries = {cls.__module__.partition(".")[0] for cls in classes if cls}
        return not self.annotation_step or not libraries <= _LIBRARIES

    @cached_property
    def built(self) -> Any:
        """The data set without its pipeline. pycocotools prints."""
        with contextlib.redirect_stdout(io.StringIO()):
            return DATASETS.build({**self.options, "pipeline": [], "serialize_data": False})

    def list_images(self, coco: CocoJson) -> list[Image]:
        folder = Path(self._root, self._prefix.get("img", ""))
        return [
            Image(folder / entry["file_name"], entry["width"], entry["height"])
            for entry in coco.images
        ]

    def to_split(self, coco: CocoJson) -> Split:
        """Return images and known objects of a json. Objects of no class have the label -1."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        labels = np.array([numbers.get(category["name"], -1) for category in coco.categories], int)
        objects = coco.objects
        is_known = (objects.images >= 0) & (objects.labels >= 0)
        known_labels = labels[objects.labels[is_known]]
        objects = objects.select(is_known, objects.images[is_known], known_labels)
        return Split(self.list_images(coco), coco.path, objects)

    def list_photos(self) -> list[str]:
        """List the paths of the images, none in a format that is not checked."""
        if self.data_format == "COCO":
            images = self.list_images(self.read_json(self.json_path))
            return [str(image.path) for image in images]
        if self.data_format == "maps":
            return [image["img_path"] for image in self.built.data_list]
        return []


class ConfiguredSplit:
    """A split of a config: 'train', 'val' or 'test'.

    Attributes:
        datasets: Its data sets, without wrappers.
        scored_jsons: The jsons of its evaluators.
        is_only_formatted: Whether its predictions are formatted and not scored.
    """

    def __init__(self, cfg: Config, name: str, read_json: Callable[[str], CocoJson]) -> None:
        metrics = evaluators(cfg, name)
        self.name = name
        self.library = cfg.get("default_scope")
        self.datasets = [ConfiguredData(options, read_json) for options in data_sets(cfg, name)]
        self.scored_jsons = [metric["ann_file"] for metric in metrics if metric.get("ann_file")]
        self.scores_masks = any("segm" in str(metric.get("metric")) for metric in metrics)
        self.is_only_formatted = bool(metrics) and all(part.get("format_only") for part in metrics)

    def find_missing(self) -> str | None:
        """Return the first path that does not exist. Remote storage (s3://...) is not searched."""
        paths = [path for dataset in self.datasets for path in dataset.paths]
        local = [path for path in [*paths, *self.scored_jsons] if "://" not in path]
        return next((path for path in local if not Path(path).exists()), None)

    def list_photos(self) -> list[str]:
        return [path for dataset in self.datasets for path in dataset.list_photos()]


class RunConfig:
    """What a config says about a run.

    Attributes:
        splits: Those whose data are checked, by name. A json of several is read once.
    """

    def __init__(self, cfg: Config, names: Iterable[str]) -> None:
        read_json = cache(lambda path: read_coco(Path(path), as_mmdet=True))
        self._cfg = cfg
        self.splits = {name: ConfiguredSplit(cfg, name, read_json) for name in names}

    @property
    def is_bgr(self) -> bool:
        """Whether the model gets BGR in a test."""
        is_tested = bool(self._cfg.get("test_dataloader"))
        return is_tested and ModelInput(self._cfg).channel_order == "BGR"

    @property
    def strict_hook(self) -> dict[str, Any] | None:
        """Options of the first StrictLoadHook."""
        hooks = self._cfg.get("custom_hooks") or []
        scope = self._cfg.get("default_scope")
        strict = (hook for hook in hooks if part_class(hook, HOOKS, scope) is StrictLoadHook)
        return next(strict, None)

    @property
    def start(self) -> dict[str, dict[str, Any]]:
        """Options of the files that training starts from, by the key that names the file."""
        init = self._cfg.model.backbone.get("init_cfg") or {}
        if not isinstance(init, dict):
            init = next((part for part in init if "checkpoint" in part), {})
        start = {"init_cfg": init} if init.get("checkpoint") else {}
        if self._cfg.get("load_from"):
            start["load_from"] = dict(self.strict_hook or {}, checkpoint=self._cfg.load_from)
        return start


def has_separate_test(cfg: Config) -> bool:
    """Return whether a test has other data or other scores than the validation."""
    tested = list(data_sets(cfg, "test"))
    if not cfg.get("val_dataloader"):
        return bool(tested)
    same_scores = evaluators(cfg, "test") == evaluators(cfg, "val")
    return bool(tested) and not (same_scores and tested == list(data_sets(cfg, "val")))
