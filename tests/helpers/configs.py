"""Config files and metafiles, each parsed only once in a process, and written without yapf."""

import copy
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import yaml
from mmengine.config import Config, DictAction
from mmengine.config import config as mmengine_config
from mmengine.fileio import YamlHandler, register_handler
from mmengine.utils import get_installed_path

from xcit_mm.utils.compat import find_bases_by_package

_bases = ExitStack()  # until the end of the process
try:
    get_installed_path("mmsegmentation")
except Exception:
    # setuptools has no pkg_resources, or the forks have another name: `Config.fromfile` finds no
    # base of mmdet and mmseg.
    _bases.enter_context(find_bases_by_package())

# yapf takes a second for the config of a detector, which mmengine writes into each checkpoint.
mmengine_config.FormatCode = lambda text, **_: (
    re.sub(r"^(\w+)=", r"\1 = ", text, flags=re.M),
    True,
)
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


def parse_cfg_options(options: Sequence[str]) -> dict[str, Any]:
    """Return options KEY=VALUE by dotted key."""
    parser = ArgumentParser()
    parser.add_argument("options", nargs="*", action=DictAction)
    return parser.parse_args(options).options
