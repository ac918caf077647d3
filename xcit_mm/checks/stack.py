"""Checks of the installed libraries."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from importlib.metadata import packages_distributions

import torch
from mmengine.device import get_device
from mmengine.utils import digit_version

from ..ops import is_compiled
from ..utils.errors import reason
from ..version import __version__
from .findings import Findings, fail, ok

# Modules of the stack with the oldest versions that xcit_mm supports.
NEEDED = dict(mmengine="0.10", torch="2.1", cv2="4", mmcv="2.0", mmdet="3.3", mmseg="1.2")
OPTIONAL = ("mmdet", "mmseg")
FIX = "install one stack in an environment of its own, see docs/install.md"


def check_stack() -> Findings:
    """Check each library, and the device of trainings."""
    parts: list[Callable[[], str]] = [
        describe_distributions,
        *(partial(describe_version, name) for name in NEEDED),
        describe_package,
        describe_device,
    ]
    for describe in parts:
        try:
            yield ok(describe())
        except Exception as error:  # the doctor reports every failure
            yield fail("D101", reason(error), FIX)


def describe_distributions() -> str:
    """Name the installed distributions of OpenMMLab.

    Raises:
        ImportError: If two of them have the same import name. The OneDL forks have the import names
            of OpenMMLab.
    """
    distributions = packages_distributions()
    modules = ("mmengine", "mmcv", "mmdet", "mmseg")
    installed = sorted({name for module in modules for name in distributions.get(module, [])})
    if {"mmcv", "mmcv-lite"} <= set(installed):
        raise ImportError("mmcv and mmcv-lite are both installed, in one folder")
    if len({name.startswith("onedl-") for name in installed}) > 1:
        raise ImportError(f"OpenMMLab and its OneDL forks are mixed: {', '.join(installed)}")
    return f"one stack: {', '.join(installed)}"


def describe_version(name: str) -> str:
    """Return the version of a module, or raise ImportError if it is too old.

    mmdet and mmseg raise an AssertionError themselves if they do not fit the installed mmcv.
    """
    if name in OPTIONAL and importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    version = importlib.import_module(name).__version__
    # Three numbers alone, so that 2.1.0a0 in NVIDIA's containers counts as 2.1.0.
    if digit_version(version)[:3] < digit_version(NEEDED[name])[:3]:
        raise ImportError(f"{name} {version} is installed, and xcit_mm needs >= {NEEDED[name]}")
    return f"{name} {version}"


def describe_package() -> str:
    """Import the models of the installed libraries, and describe whether mmcv is compiled."""
    for name in filter(importlib.util.find_spec, OPTIONAL):
        importlib.import_module(f"{name}.models")
    return f"xcit_mm {__version__}, mmcv.ops {'compiled' if is_compiled() else 'ours'}"


def describe_device() -> str:
    """Run an operator of mmcv on the device where mmengine trains, and return its name."""
    from mmcv.ops import nms  # a mmcv that was compiled for another torch has none

    device = get_device()
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0]], device=device)
    nms(boxes, boxes[:, 3], iou_threshold=0.5)
    return f"training runs on {device}"
