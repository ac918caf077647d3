"""Findings about the installed stack."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import packages_distributions

import torch
from mmengine.device import get_device
from mmengine.utils import digit_version

from ..ops import is_compiled
from ..utils.errors import reason
from ..version import __version__
from .findings import Finding, fail, ok

# Modules of the stack, and the versions that xcit_mm needs; those that may lack.
NEEDED = dict(mmengine="0.10", torch="2.1", cv2="4", mmcv="2.0", mmdet="3.3", mmseg="1.2")
OPTIONAL = ("mmdet", "mmseg")
FIX = "install one stack in an environment of its own, see docs/install.md"


def check_stack() -> Iterator[Finding]:
    """Check each part of the stack, and the device of trainings."""
    checks: list[Callable[[], str]] = [check_one_stack]
    checks += [partial(check_version, name) for name in NEEDED]
    checks += [check_package, check_device]
    for check in checks:
        try:
            yield ok(check())
        except Exception as error:  # the doctor reports every failure
            yield fail("D101", reason(error), FIX)


def check_one_stack() -> str:
    """Check that the libraries are all of OpenMMLab, or all of the OneDL forks, which have the same
    import names.
    """
    distributions = packages_distributions()
    modules = ("mmengine", "mmcv", "mmdet", "mmseg")
    installed = sorted({name for module in modules for name in distributions.get(module, [])})
    if {"mmcv", "mmcv-lite"} <= set(installed):
        raise ImportError("mmcv and mmcv-lite are both installed, in one folder")
    if len({name.startswith("onedl-") for name in installed}) > 1:
        raise ImportError(f"OpenMMLab and its OneDL forks are mixed: {', '.join(installed)}")
    return f"one stack: {', '.join(installed)}"


def check_version(name: str) -> str:
    """Check that a module is new enough. mmdet and mmseg also check the version of mmcv."""
    if name in OPTIONAL and importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    version = importlib.import_module(name).__version__
    # By three numbers, 2.1.0a0 of NVIDIA's containers counts as 2.1.0.
    if digit_version(version)[:3] < digit_version(NEEDED[name])[:3]:
        raise ImportError(f"{name} {version} is installed, and xcit_mm needs >= {NEEDED[name]}")
    if name == "torch" and digit_version(version)[:2] < (2, 6):
        version += ": scripts of mmdet and mmseg run what a .pth contains, load what you trust"
    return f"{name} {version}"


def check_package() -> str:
    """Check that the installed libraries load their models."""
    for name in filter(importlib.util.find_spec, OPTIONAL):
        importlib.import_module(f"{name}.models")
    return f"xcit_mm {__version__}, mmcv.ops {'compiled' if is_compiled() else 'ours'}"


def check_device() -> str:
    """Check that torch and mmcv's operators run on the device on which mmengine trains."""
    from mmcv.ops import nms  # which a compiled mmcv of another torch lacks

    device = get_device()
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0]], device=device)
    nms(boxes, boxes[:, 3], iou_threshold=0.5)
    return f"training runs on {device}"
