"""Checks of a run against this machine: processes, mixed precision and disk space."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from ..models.precision import fast_dtype
from ..utils.configs import part_class
from .findings import Finding, check, fail, ok


def check_launcher(launcher: str | None) -> Iterator[Finding]:
    """Check that several processes have GPUs: every launcher of mmengine selects one by `torch.cuda`."""
    if launcher not in (None, "none") and get_device() in ("cpu", "mps"):
        text = "mmengine starts several processes on GPUs only, and this machine has none"
        fix = "python tools/train.py or test.py without --launcher: in a single process SyncBN acts as BN"
        yield fail("D220", text, fix)


def is_mixed_precision(cfg: Config) -> bool:
    """Return whether a config trains with mmengine's AmpOptimWrapper."""
    return part_class(cfg.get("optim_wrapper") or {}, OPTIM_WRAPPERS, cfg.get("default_scope")) is AmpOptimWrapper


@check("D292", "correct optim_wrapper")
def check_precision(cfg: Config, amp: bool = False) -> Iterator[Finding]:
    """Check that the machine is fast in mixed precision, which the config or `--amp` sets."""
    device = get_device()
    if device not in ("cpu", "mps") or fast_dtype(device) == "bfloat16":
        return
    wrapper = cfg.get("optim_wrapper") or {}
    needs = "which needs a GPU or a CPU with AVX512_BF16 or AMX, and this machine has none"
    if amp:
        yield fail("D206", f"--amp is mixed precision, {needs}", "leave --amp out")
    elif is_mixed_precision(cfg):
        options = [f"optim_wrapper.{name}" for name in ("loss_scale", "dtype") if name in wrapper]
        yield fail(
            "D206",
            f"the config trains in mixed precision (AmpOptimWrapper), {needs}",
            f"leave out {' and '.join(options)}, and give " * bool(options)  # OptimWrapper does not take these options
            + "--cfg-options optim_wrapper.type=OptimWrapper",
        )


@check("D293", "correct work_dir")
def check_disk(cfg: Config, config: str, model: nn.Module) -> Iterator[Finding]:
    """Check that the disk has space for two checkpoints. The path of the config names the default work directory."""
    work_dir = Path(cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    existing = next(path for path in (work_dir.absolute(), *work_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    # Weights and Adam's two moments, float32.
    needed = 12e-9 * sum(p.numel() for p in model.parameters())
    text = f"{free:.1f} GB free for {work_dir}, a checkpoint takes about {needed:.1f}"
    if free < 2 * needed:
        yield fail("D207", text, "--work-dir on another disk, and default_hooks.checkpoint.max_keep_ckpts=1")
    yield ok(text)
