"""Config files and metafiles, each parsed only once in a process."""

import copy
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import yaml
from mmengine.config import Config
from mmengine.fileio import YamlHandler, register_handler

_parse_config = cache(Config.fromfile)
_parse_yaml = cache(lambda text: yaml.load(text, Loader=getattr(yaml, "CLoader", yaml.Loader)))


@register_handler(["yml", "yaml"])
class CachedYamlHandler(YamlHandler):
    """mmengine parses all metafiles of mmdet or mmseg for each base of a config, 0.2 s a base."""

    def load_from_fileobj(self, file: TextIO, **kwargs: Any) -> Any:
        return _parse_yaml(file.read())


def read_config_file(path: Path) -> Config:
    """Return a copy of a config, which the caller may change."""
    return copy.deepcopy(_parse_config(path))
