"""Private names of other libraries: each with the reason for its use and the version it was seen in.

Nothing else in the package imports or replaces a private name. Libraries other than torch are imported on use.
"""

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.utils import _pytree

if TYPE_CHECKING:
    from mmengine.runner import Runner

__all__ = [
    "BatchNorm",
    "NormBase",
    "gdal_error",
    "is_resuming",
    "is_training_run",
    "keep_scope_of_bases",
    "tree_map",
    "without_resize_warning",
]

# torch 2.13: the base class of every BatchNorm layer, SyncBatchNorm included, and that of BatchNorm and InstanceNorm.
# The public classes are siblings without a public base class.
BatchNorm = torch.nn.modules.batchnorm._BatchNorm
NormBase = torch.nn.modules.batchnorm._NormBase

# torch 2.13: maps a function over the leaves of nested lists, tuples and dicts. torch.utils has no public name for it.
tree_map = _pytree.tree_map


def keep_scope_of_bases() -> None:
    """Make mmengine (0.10.7) read `_base_ = 'xcit_mm::CONFIG'` without taking `xcit_mm` for a library of its own.

    mmengine gives every part of such a base the scope `xcit_mm` and then looks for its class in a registry of that
    name. The parts of this package's configs belong to their `default_scope`. mmengine has no option for it, and a
    registry cannot pass a search on to the registry of the default scope.
    """
    from mmengine.config import Config

    find_base = Config._get_cfg_path

    def find_base_without_scope(cfg_path: str, filename: str) -> tuple[str, str | None]:
        path, scope = find_base(cfg_path, filename)
        return path, None if scope == "xcit_mm" else scope

    Config._get_cfg_path = staticmethod(find_base_without_scope)


def is_resuming(runner: "Runner") -> bool:
    """Whether a run of mmengine (0.10.7) resumes. Hooks of mmengine read the same attribute."""
    return runner._resume


def is_training_run(runner: "Runner") -> bool:
    """Whether a run of mmengine (0.10.7) trains: only then it builds its loop, as the public `train_loop` would."""
    from mmengine.runner import BaseLoop

    return isinstance(runner._train_loop, BaseLoop)


def gdal_error() -> type[Exception]:
    """Return the base class of GDAL's errors in rasterio (1.4), which `rasterio.errors` does not export."""
    from rasterio._err import CPLE_BaseError

    return CPLE_BaseError


def without_resize_warning() -> Any:
    """Return a context in which mmseg (1.2) resizes without its warning about aligned corners, as its default.

    The warning calls int() on sizes, which makes them constants of a traced graph. Heads do not pass the option on.
    """
    from mmseg.models.utils import resize

    return patch.object(resize, "__defaults__", (*resize.__defaults__[:-1], False))
