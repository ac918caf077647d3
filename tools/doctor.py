"""Check that the installed stack can run xcit_mm with mmdet and mmseg: one line for each check, with a fix if it fails.

    python tools/doctor.py

With a config it also checks a training run before it starts: data, model, weights, batch size. Only a failure stops a
run. docs/doctor.md explains the codes of notes and failures. WORLD_SIZE gives the number of processes.

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

from broken_pipe import ignore_broken_pipe


def stack() -> list[str]:
    """Return the installed distributions of OpenMMLab and of its OneDL forks, which have the same import names."""
    found = packages_distributions()
    return sorted({name for module in ("mmengine", "mmcv", "mmdet", "mmseg") for name in found.get(module, [])})


def forks(distributions: list[str]) -> list[str]:
    """Return the forks among distributions."""
    return [name for name in distributions if name.startswith("onedl-")]


MAKE = "make STACK=onedl" if forks(stack()) else "make"
REINSTALL = f"{MAKE} clean && {MAKE} setup"
ONE_MMCV = "pip uninstall mmcv mmcv-lite && pip install mmcv-lite==2.1.0, or compile mmcv (docs/install.md)"
OPENCV = "apt-get install libgl1 libglib2.0-0, or the packages of your system with these libraries"


class Note(Exception):
    """A finding that does not stop a run."""


def version(package: str, minimum: str = "0", missing: str = "") -> Callable[[], str]:
    """Return a check that a package can be imported and is new enough. mmdet and mmseg also check the version of mmcv.

    Args:
        missing: What the user cannot do without the package. If it is given, a missing package is a note.
    """

    def check() -> str:
        if missing and importlib.util.find_spec(package) is None:
            raise Note(f"{package} is not installed: {missing}")
        found = importlib.import_module(package).__version__
        from mmengine.utils import digit_version

        if digit_version(found)[:3] < digit_version(minimum)[:3]:  # 2.1.0a0 of NVIDIA's containers counts as 2.1.0
            raise ImportError(f"{package} {found} is installed, and xcit_mm needs >= {minimum}")
        return f"{package} {found}"

    return check


def one_stack() -> str:
    """Check that the libraries are all of OpenMMLab, or all of the OneDL forks."""
    found = stack()
    onedl = forks(found)
    classic = [name for name in found if name not in onedl]
    if {"mmcv", "mmcv-lite"} <= set(found):
        raise ImportError(f"mmcv and mmcv-lite are both installed, in one folder: {ONE_MMCV}")
    if onedl and classic:
        raise ImportError(f"{', '.join(classic)} of OpenMMLab and {', '.join(onedl)} of its OneDL forks are installed")
    return f"one stack: {', '.join(found)}"


def opencv() -> str:
    """Check that OpenCV, which mmcv imports, finds its system libraries."""
    import cv2

    return f"OpenCV {cv2.__version__}"


def mmcv_ops() -> str:
    """Check that mmcv's operators run, compiled or in the implementation of xcit_mm.ops."""
    import torch

    from xcit_mm.ops import has_gpu_kernels, is_compiled

    compiled = is_compiled()
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 29.0, 29.0]])
    kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)[1].tolist()
    if kept != [0, 2]:
        raise ImportError(f"mmcv.ops.nms keeps boxes {kept} of three, not [0, 2]")
    if torch.cuda.is_available() and not compiled and not has_gpu_kernels():
        raise Note("detectors are slow on a GPU without torchvision: install torchvision for this torch")
    return f"mmcv.ops {'compiled' if compiled else 'of xcit_mm'}"


def registered() -> str:
    """Check that the models of the libraries can be imported, and that their registries have the backbone."""
    import xcit_mm

    libraries = [name for name in ("mmdet", "mmseg") if importlib.util.find_spec(name)]
    for name in libraries:
        importlib.import_module(f"{name}.models")
        if importlib.import_module(f"{name}.registry").MODELS.get("XCiT") is not xcit_mm.XCiT:
            raise ImportError(f"type='XCiT' is not registered with {name}")
    return f"xcit_mm {xcit_mm.__version__}, registered with {' and '.join(libraries)}"


def gpu() -> str:
    """Report the GPUs, or that training runs on the CPU."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA sees {', '.join(names)}" if names else "no GPU, training runs on CPU"


def disk() -> str:
    """Check the disk space for checkpoints."""
    free = shutil.disk_usage(".").free / 1e9
    if free < 1:
        raise OSError(f"{free:.1f} GB free in this folder, to which training writes work_dirs")
    return f"{free:.0f} GB free in this folder"


CHECKS = (
    ("D101", one_stack, "install each in an environment of its own, see docs/install.md"),
    ("D102", version("mmengine", "0.10"), REINSTALL),
    ("D103", version("torch", "2.6"), REINSTALL),
    ("D104", opencv, OPENCV),
    ("D105", version("mmcv"), REINSTALL),
    ("D106", mmcv_ops, ONE_MMCV),
    ("D107", version("mmdet", "3.3", missing="no detection"), REINSTALL),
    ("D108", version("mmseg", "1.2", missing="no segmentation"), f"{REINSTALL} (mmseg also needs ftfy and regex)"),
    ("D109", registered, "pip install -e ."),
    ("D110", gpu, REINSTALL),
    ("D111", disk, "free disk space, or train with --work-dir on another disk"),
)


def reason(error: Exception) -> str:
    """Return an exception as one line. The function of the package can only be imported with the package."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def findings(config: str | None) -> Iterator[str]:
    """Yield lines about the installation, then lines about the config."""
    fixes: dict[str, str] = {}
    for code, check, fix in CHECKS:
        try:
            yield f"{'ok':<11}{check()}"
        except Note as found:
            yield f"note {code}  {found}"
        except Exception as error:  # the doctor reports every failure
            text = reason(error)
            yield f"FAIL {code}  {text} -- fix: {fixes.setdefault(text, fix)}"  # the same error has the same fix
    if config:
        try:
            from xcit_mm.checks.doctor import diagnose
        except Exception as error:
            yield f"FAIL D112  the config cannot be checked: {reason(error)} -- fix: correct the installation first"
            return
        yield from map(str, diagnose(config, sys.argv[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="a config, a model's name or a work folder: checks a training run")
    parser.add_argument("--cfg-options", nargs="+", metavar="KEY=VALUE", help="as in tools/train.py")
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
