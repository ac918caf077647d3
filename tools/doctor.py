"""Check that the installed stack can run xcit_mm with mmdet and mmseg: one line for each part, with
a fix if it fails.

    python tools/doctor.py

With a config it also checks a training run before it starts: data, model, weights, batch size. Only
a failure stops a run. docs/doctor.md explains the codes of notes and failures. WORLD_SIZE gives the
number of processes.

    python tools/doctor.py CONFIG [--cfg-options KEY=VALUE ...]
    WORLD_SIZE=8 python tools/doctor.py CONFIG
"""

import argparse
import contextlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import packages_distributions

from broken_pipe import ignore_broken_pipe

# Modules of the stack, and the versions that xcit_mm needs. A library of tasks may be missing.
NEEDED = dict(mmengine="0.10", torch="2.6", cv2="4", mmcv="2.0", mmdet="3.3", mmseg="1.2")
OPTIONAL = dict(mmdet="no detection", mmseg="no segmentation")
SETUP = "install one stack in an environment of its own, see docs/install.md"
FIXES = dict(
    cv2="apt-get install libgl1 libglib2.0-0, or the packages of your system with these libraries",
    mmcv="pip uninstall mmcv mmcv-lite && pip install mmcv-lite==2.1.0, or compile mmcv "
    "(docs/install.md)",
)


def stack() -> list[str]:
    """Return the installed distributions of OpenMMLab and of its OneDL forks, which have the same
    import names.
    """
    distributions = packages_distributions()
    modules = ("mmengine", "mmcv", "mmdet", "mmseg")
    return sorted({name for module in modules for name in distributions.get(module, [])})


def check_one_stack() -> str:
    """Check that the libraries are all of OpenMMLab, or all of the OneDL forks."""
    installed = stack()
    names = ", ".join(installed)
    forks = [name for name in installed if name.startswith("onedl-")]
    if {"mmcv", "mmcv-lite"} <= set(installed):
        raise ImportError(f"mmcv and mmcv-lite are both installed, in one folder: {FIXES['mmcv']}")
    if 0 < len(forks) < len(installed):
        raise ImportError(f"libraries of OpenMMLab and its OneDL forks are mixed: {names}")
    return f"one stack: {names}"


def check_version(name: str) -> str:
    """Check that a module can be imported and is new enough. mmdet and mmseg also check the version
    of mmcv.
    """
    if name in OPTIONAL and importlib.util.find_spec(name) is None:
        return f"{name} is not installed: {OPTIONAL[name]}"
    version = importlib.import_module(name).__version__
    from mmengine.utils import digit_version

    # By three numbers, 2.1.0a0 of NVIDIA's containers counts as 2.1.0.
    if digit_version(version)[:3] < digit_version(NEEDED[name])[:3]:
        raise ImportError(f"{name} {version} is installed, and xcit_mm needs >= {NEEDED[name]}")
    return f"{name} {version}"


def check_use() -> str:
    """Check that the libraries find the backbone, and that mmcv's operators run, compiled or of
    xcit_mm.ops.
    """
    import torch

    import xcit_mm
    from xcit_mm.ops import is_compiled

    compiled = is_compiled()
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 29.0, 29.0]])
    kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)[1].tolist()
    if kept != [0, 2]:
        raise ImportError(f"mmcv.ops.nms keeps boxes {kept} of three, not [0, 2]: {FIXES['mmcv']}")
    for name in filter(importlib.util.find_spec, OPTIONAL):
        importlib.import_module(f"{name}.models")
        if importlib.import_module(f"{name}.registry").MODELS.get("XCiT") is not xcit_mm.XCiT:
            raise ImportError(f"type='XCiT' is not registered with {name}")
    device = "no GPU, training runs on CPU"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    operators = "compiled" if compiled else "of xcit_mm"
    return f"xcit_mm {xcit_mm.__version__}, mmcv.ops {operators}, {device}"


def line_of(check: Callable[[], str], fix: str = SETUP) -> str:
    """Return the line of a check, with a fix if it fails."""
    try:
        return f"{'ok':<11}{check()}"
    except Exception as error:  # the doctor reports every failure
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"FAIL D101  {message} -- fix: {fix}"


def findings(config: str | None) -> Iterator[str]:
    """Yield lines about the stack, then lines about the config."""
    yield line_of(check_one_stack)
    for name in NEEDED:
        yield line_of(partial(check_version, name), FIXES.get(name, SETUP))
    yield line_of(check_use)
    if config:
        try:
            from xcit_mm.checks.doctor import diagnose
        except Exception:
            yield "FAIL       the config cannot be checked -- fix: correct the installation first"
            return
        yield from map(str, diagnose(config, sys.argv[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "config", nargs="?", help="a config, a model's name or a work folder: checks a training run"
    )
    parser.add_argument(
        "--cfg-options", nargs="+", metavar="KEY=VALUE", help="as in tools/train.py"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the findings include what matters
    lines = sys.stdout
    failures = 0
    # The output of libraries while they are imported must not mix with the findings.
    with ignore_broken_pipe(), contextlib.redirect_stdout(sys.stderr):
        for line in findings(args.config):
            print(line, file=lines, flush=True)
            failures += line.startswith("FAIL")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
