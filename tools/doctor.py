"""Check that the installed stack can run xcit_mm with mmdet and mmseg: one line a check, the fix beside a failure.

    python tools/doctor.py

With a config it also checks a training run before it costs anything: data, model, weights, batch size. "note" is what
is worth knowing and no failure. The number of processes is taken from WORLD_SIZE.

    python tools/doctor.py CONFIG [--cfg-options KEY=VALUE ...]
    WORLD_SIZE=8 python tools/doctor.py CONFIG
"""

import argparse
import contextlib
import importlib
import importlib.util
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions

from xcit_mm.utils.cli import ignore_broken_pipe


def stack() -> list[str]:
    """Names of the installed distributions of OpenMMLab or of its OneDL forks, which are imported by the same names."""
    found = packages_distributions()
    return sorted({name for module in ("mmengine", "mmcv", "mmdet", "mmseg") for name in found.get(module, [])})


def forks(distributions: list[str]) -> list[str]:
    """Names of the forks among distributions."""
    return [name for name in distributions if name.startswith("onedl-")]


MAKE = "make STACK=onedl" if forks(stack()) else "make"
REINSTALL = f"{MAKE} clean && {MAKE} setup"
COMPILED_MMCV = "pip uninstall mmcv && pip install mmcv-lite, or compile mmcv for this torch (docs/install.md)"
OPENCV = "apt-get install libgl1 libglib2.0-0, or what they are called on your system"


class Note(Exception):
    """What is worth knowing and no failure."""


def version(package: str, least: str = "0", without: str = "") -> Callable[[], str]:
    """A check that a package is new enough and imports; mmdet and mmseg do so only beside an mmcv that suits them.

    With `without` the package may be left out, and this is what cannot be done then.
    """

    def check() -> str:
        if without and importlib.util.find_spec(package) is None:
            raise Note(f"{package} is not installed: {without}")
        found = importlib.import_module(package).__version__
        from mmengine.utils import digit_version

        if digit_version(found)[:3] < digit_version(least)[:3]:  # 2.1.0a0, as of NVIDIA's containers, counts as 2.1.0
            raise ImportError(f"{package} {found} is installed, >= {least} is needed")
        return f"{package} {found}"

    return check


def one_stack() -> str:
    """Check that all libraries are OpenMMLab's, or all are the OneDL forks."""
    found = stack()
    onedl = forks(found)
    others = [name for name in found if name not in onedl]
    if onedl and others:
        raise ImportError(f"{', '.join(others)} of OpenMMLab beside {', '.join(onedl)} of its OneDL forks: a mix")
    return f"one stack: {', '.join(found)}"


def opencv() -> str:
    """Check that OpenCV, which mmcv imports, finds the libraries of the system that it needs."""
    import cv2

    return f"OpenCV {cv2.__version__}"


def mmcv_ops() -> str:
    """Check that mmcv's operators run, compiled or as xcit_mm.ops has them."""
    import torch

    from xcit_mm.ops import fast_on_gpu, is_compiled

    compiled = is_compiled()
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 29.0, 29.0]])
    kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)[1].tolist()
    if kept != [0, 2]:
        raise ImportError(f"mmcv.ops.nms keeps boxes {kept} of three, not [0, 2]")
    if torch.cuda.is_available() and not compiled and not fast_on_gpu():
        raise Note("detectors are slow on a GPU without torchvision: install the one made for this torch")
    return f"mmcv.ops {'compiled' if compiled else 'of xcit_mm'}"


def registered() -> str:
    """Check that the libraries can be imported whole and build the backbone."""
    import xcit_mm

    libraries = [name for name in ("mmdet", "mmseg") if importlib.util.find_spec(name)]
    for name in libraries:
        importlib.import_module(f"{name}.models")
        if importlib.import_module(f"{name}.registry").MODELS.get("XCiT") is not xcit_mm.XCiT:
            raise ImportError(f"type='XCiT' is not registered with {name}")
    return f"xcit_mm {xcit_mm.__version__}, registered with {' and '.join(libraries)}"


def gpu() -> str:
    """Say on what training runs."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA sees {', '.join(names)}" if names else "no GPU, training runs on CPU"


def disk() -> str:
    """Check that there is room for checkpoints."""
    free = shutil.disk_usage(".").free / 1e9
    if free < 1:
        raise OSError(f"{free:.1f} GB free in this folder, where work_dirs is written")
    return f"{free:.0f} GB free in this folder"


CHECKS = (
    (one_stack, "an environment of its own for either, see docs/install.md"),
    (version("mmengine", "0.10"), REINSTALL),
    (version("torch", "2.4"), REINSTALL),
    (opencv, OPENCV),
    (version("mmcv"), REINSTALL),
    (mmcv_ops, COMPILED_MMCV),
    (version("mmdet", "3.3", without="nothing is detected"), REINSTALL),
    (version("mmseg", "1.2", without="nothing is segmented"), f"{REINSTALL} (mmseg also needs ftfy and regex)"),
    (registered, "pip install -e ."),
    (gpu, REINSTALL),
    (disk, "free some, or train with --work-dir on another disk"),
)


def reason(error: Exception) -> str:
    """An exception in one line; that of the package needs the package."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def findings(config: str | None) -> Iterator[str]:
    """The lines about the installation, then those about a config."""
    fixes: dict[str, str] = {}
    for check, fix in CHECKS:
        try:
            yield f"ok    {check()}"
        except Note as worth_knowing:
            yield f"note  {worth_knowing}"
        except Exception as error:  # any failure to import is this tool's to report
            told = reason(error)
            yield f"FAIL  {told} -- fix: {fixes.setdefault(told, fix)}"  # the same again has the same fix
    if config:
        try:
            from xcit_mm.checks.doctor import diagnose
        except Exception as error:
            yield f"FAIL  the config was not looked at: {reason(error)} -- fix: see to the installation first"
            return
        yield from map(str, diagnose(config, sys.argv[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="config of a training run to check")
    parser.add_argument("--cfg-options", nargs="+", metavar="KEY=VALUE", help="as in tools/train.py")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # what matters is printed
    lines = sys.stdout
    failures = 0
    # A library that prints as it is imported does so beside the lines.
    with ignore_broken_pipe(), contextlib.redirect_stdout(sys.stderr):
        for line in findings(args.config):
            print(line, file=lines, flush=True)
            failures += line.startswith("FAIL")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
