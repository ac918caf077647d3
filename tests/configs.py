"""Config files, each parsed only once."""

import copy
from functools import cache
from pathlib import Path

from mmengine.config import Config

_parse = cache(Config.fromfile)


def read_config_file(path: Path) -> Config:
    """Return a copy of a config, which the caller may change."""
    return copy.deepcopy(_parse(path))
