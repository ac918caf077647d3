"""Config files, each parsed once however many tests read it."""

import copy
from functools import cache
from pathlib import Path

from mmengine.config import Config

_parse = cache(Config.fromfile)


def read_config_file(path: Path) -> Config:
    """A config of the caller's own, to change as it likes."""
    return copy.deepcopy(_parse(path))
