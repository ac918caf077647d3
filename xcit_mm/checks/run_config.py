"""The data of a run as its config describes them."""

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, TRANSFORMS

from ..datasets.coco import CocoFile, read_coco
from ..utils.config_data import data_sets, dataset_class, evaluators
from ..utils.config_parts import find_step, iter_parts, loading_step, part_class, type_name

_LIBRARIES = {"mmcv", "mmseg", "xcit_mm"}  # their steps do not change labels


class ConfiguredData:
    """A data set in a config.

    Attributes:
        split: The split that it belongs to.
        built: The data set without its pipeline. It has not read its files.
        paths: Its folders and annotation file.
        json_path: The annotation file.
        classes: Names of its classes, if it has any.
        loading: The step of its pipeline that loads an image.
        needs_masks: Whether the pipeline loads masks of objects, or an evaluator scores them.
        poly2mask: Whether the pipeline loads masks in RLE.
    """

    def __init__(self, options: dict[str, Any], split: "ConfiguredSplit") -> None:
        self.split = split
        unread = dict(pipeline=[], lazy_init=True, serialize_data=False)
        self.built: Any = DATASETS.build({**options, **unread})
        self.paths = list(filter(None, [*self.built.data_prefix.values(), self.built.ann_file]))
        self.json_path = os.path.realpath(self.built.ann_file or "")
        self.classes = tuple(self.built.metainfo.get("classes") or ())
        self._pipeline = options.get("pipeline", [])
        self.loading = loading_step(self._pipeline) or dict(type="LoadImageFromFile")
        annotations = find_step(self._pipeline, "LoadAnnotations") or {}
        are_scored = any("segm" in str(metric.get("metric")) for metric in split.metrics)
        self.needs_masks = are_scored or annotations.get("with_mask", False)
        self.poly2mask = annotations.get("poly2mask", True)

    @property
    def data_format(self) -> str:
        """'COCO', 'maps', or '' for another format or photos alone."""
        if self._reads_as("mmdet.datasets", "CocoDataset"):
            return "COCO"
        has_labels = any("Annotation" in type_name(step) for step in self._pipeline)
        return "maps" if has_labels and self._reads_as("mmseg.datasets", "BaseSegDataset") else ""

    def _reads_as(self, module: str, base: str) -> bool:
        """Return whether the data set reads its files as a class of a library does.

        Panoptic data sets are subclasses of `CocoDataset` that parse other files.
        """
        library = sys.modules.get(module)  # it is imported if the data set belongs to it
        methods = ("load_data_list", "parse_data_info")
        return library is not None and all(
            getattr(type(self.built), name) is getattr(getattr(library, base), name)
            for name in methods
        )

    @property
    def may_change_labels(self) -> bool:
        """Whether the pipeline loads maps in an unknown way, or may change their labels."""
        classes = [part_class(step, TRANSFORMS) for step in iter_parts(self._pipeline)]
        libraries = {cls.__module__.partition(".")[0] for cls in classes if cls}
        return not find_step(self._pipeline, "LoadAnnotations") or not libraries <= _LIBRARIES

    @cached_property
    def coco(self) -> CocoFile:
        """The content of its json. Raises the errors of `read_coco`."""
        return read_coco(Path(self.json_path))

    def list_photos(self) -> dict[str, Any]:
        """Return what the json or the data set says about each image, by path.

        Data in a format that is not checked have none.
        """
        if self.data_format == "COCO":
            folder = self.built.data_prefix["img"]
            return {os.path.join(folder, image.file_name): image for image in self.coco.images}
        if self.data_format == "maps":
            self.built.full_init()
            return {image["img_path"]: image for image in self.built.data_list}
        return {}


class ConfiguredSplit:
    """A split in a config: 'train', 'val' or 'test'.

    Attributes:
        heads: The heads of the model that predict its classes, by name.
        metrics: Configs of its evaluators.
        scored_jsons: The jsons of its evaluators.
        is_of_tiles: Whether its images were cut out of a raster.
    """

    def __init__(self, cfg: Config, name: str, heads: Mapping[str, Any]) -> None:
        self.name = name
        self.heads = heads
        self.metrics = evaluators(cfg, name)
        jsons = (metric.get("ann_file") for metric in self.metrics)
        self.scored_jsons = [path for path in jsons if path]
        # A base may have been trained on a raster, and this run on photos.
        self.is_of_tiles = bool(cfg.get("raster")) and not (cfg.get("source") or {}).get("data")
        self._cfg = cfg

    @cached_property
    def datasets(self) -> list[ConfiguredData]:
        """Its data sets, without wrappers. Raises a library's error for a wrong option."""
        return [
            ConfiguredData(options, self)
            for options in data_sets(self._cfg, self.name)
            if issubclass(dataset_class(options), BaseDataset)
        ]
