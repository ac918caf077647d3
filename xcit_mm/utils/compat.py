"""Private names of other libraries, each with the reason for its use and the library's version.

No other module uses one, but `weights` knows those in checkpoints. What this package replaces in
another library, it replaces for the time of a call, and here.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from logging import FileHandler
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.runner import BaseLoop, CheckpointLoader, Runner
from mmengine.utils import digit_version
from torch import nn
from torch.nn.modules import module as _all_modules

# torch 2.13: the base class of every BatchNorm layer, SyncBatchNorm included. The public classes
# are siblings without a public base class.
BatchNorm = torch.nn.modules.batchnorm._BatchNorm

# mmcv 2.1: the module of the compiled operators, which xcit_mm.ops replaces. mmcv.ops imports it.
MMCV_OPERATORS = "mmcv._ext"

TORCH = digit_version(torch.__version__)[:2]
"""Version of torch, such as (2, 1)."""


def is_compiling() -> bool:
    """Return whether torch compiles or exports. It has a public function from 2.3 on."""
    if TORCH < (2, 3):
        return torch._utils.is_compiling()
    return torch.compiler.is_compiling()


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the type of autocast on a type of device, or None where it is off. torch has functions
    that take the device from 2.4 on.
    """
    if TORCH >= (2, 4):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def can_autocast(device: str, dtype: torch.dtype) -> bool:
    """Return whether autocast on a type of device takes a type: on a CPU, float16 from torch 2.2
    on.
    """
    return device != "cpu" or dtype != torch.float16 or TORCH >= (2, 2)


def keeps_step_hooks() -> bool:
    """Return whether an optimizer calls its hooks after `torch.compile`, as from torch 2.3 on."""
    return TORCH >= (2, 3)


def total_norm(tensors: list[torch.Tensor], order: float = 2.0) -> torch.Tensor:
    """Return the norm of all values of tensors. torch has a function from 2.6 on."""
    if TORCH >= (2, 6):
        return nn.utils.get_total_norm(tensors, order)
    norms = [torch.linalg.vector_norm(tensor, order) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), order) if norms else torch.tensor(0.0)


def roi_align_backward_kernel(torchvision_kernels: Any) -> Callable[..., torch.Tensor]:
    """Return the operator of torchvision's gradient of roi_align, which has no public name."""
    return torchvision_kernels._roi_align_backward


def import_in_spawned_processes(function: Callable[[], None]) -> None:
    """Make the processes that this one spawns import a function's module before anything else that
    they get. multiprocessing (Python 3.13) gives them this dict first, and has no option for it.
    """
    process: Any = multiprocessing.current_process()
    process._config["imported first"] = function


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks act on a module or submodule, or whether a `forward` is replaced.

    torch (2.13) has public functions to register hooks, but none to list them.
    """
    everywhere = _all_modules._global_forward_hooks or _all_modules._global_forward_pre_hooks
    forward = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    hooked = everywhere or forward or module._backward_hooks or module._backward_pre_hooks
    return bool(hooked) or any(map(has_hooks, module.children()))


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute `F.linear` of float32 on a CPU by oneDNN, without a gradient.

    torch (2.13) takes MKL, which multiplies at half speed on AMD's processors with AVX512, and has
    no option for float32.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "none")


@contextmanager
def find_bases_by_package() -> Iterator[None]:
    """Make mmengine (0.10.7) find `_base_ = 'PACKAGE::CONFIG'` by the import name of the package.

    mmengine asks setuptools, which from 82 on lacks `pkg_resources`, for the name of a
    distribution, which for mmseg differs between the stacks. And it gives every part of such a base
    the scope PACKAGE, in which it looks for its class: the parts of this package's configs belong
    to their `default_scope`. mmengine has no option for either.
    """
    # `Config._file2dict` calls this method by the class's name: a subclass would repeat its 160
    # lines, and the libraries' scripts, which read configs by `Config.fromfile`, would not use it.
    find_base = Config._get_cfg_path

    def find(base: str, filename: str) -> tuple[str, str | None]:
        """Return the path of a base's file, and the scope of its parts or None."""
        package, separator, path = base.partition("::")
        if not separator:
            return find_base(base, filename)
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{base}: {package} is not installed")
        config = Path(spec.origin).parent / ".mim" / "configs" / path
        if not config.is_file():
            raise FileNotFoundError(f"{base}: {package} has no such config")
        return str(config), None if package == "xcit_mm" else package

    Config._get_cfg_path = staticmethod(find)
    try:
        yield
    finally:
        Config._get_cfg_path = staticmethod(find_base)


def file_handlers(logger: MMLogger) -> list[FileHandler]:
    """List the handlers by which a logger writes files."""
    return [handler for handler in logger.handlers if isinstance(handler, FileHandler)]


@contextmanager
def load_files_by(loader: Callable[..., Any]) -> Iterator[None]:
    """Make mmengine (0.10.7) load checkpoints of the web, and below torch 2.6 local ones, by
    another function, in this block.

    Its own runs what a file contains. mmengine has no public way to ask for a registered loader.
    """
    schemes = ["http://", "https://"]
    if TORCH < (2, 6):
        schemes.append("")
    former = [CheckpointLoader._get_checkpoint_loader(scheme) for scheme in schemes]
    CheckpointLoader.register_scheme(schemes, loader, force=True)
    try:
        yield
    finally:
        for scheme, former_loader in zip(schemes, former, strict=True):
            CheckpointLoader.register_scheme(scheme, former_loader, force=True)


def is_resuming(runner: Runner) -> bool:
    """Whether a run of mmengine (0.10.7) resumes. Hooks of mmengine read the same attribute."""
    return runner._resume


def train_dataloader_config(runner: Runner) -> Any:
    """Return the config of the training data, or the loader, that a run of mmengine (0.10.7) was
    given. `runner.cfg` lacks it if the run was not made from a config.
    """
    return runner._train_dataloader


def is_training_run(runner: Runner) -> bool:
    """Return whether a run of mmengine (0.10.7) has a training loop. `train_loop` builds one."""
    return isinstance(runner._train_loop, BaseLoop)


def gdal_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that rasterio (1.4) raises for errors of GDAL.

    Writing and closing raise GDAL's own errors unwrapped, whose base class `rasterio.errors` does
    not export.
    """
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    return RasterioError, CPLE_BaseError


@contextmanager
def without_resize_warning() -> Iterator[None]:
    """Make mmseg (1.2) resize, by default, without its warning about aligned corners."""
    # A filter of warnings does not help: before the warning, int() makes the sizes constants of an
    # exported graph. Heads import the function by name and do not pass its option on.
    from mmseg.models.utils import resize

    defaults = resize.__defaults__
    resize.__defaults__ = (*defaults[:-1], False)  # the last default is that of `warning`
    try:
        yield
    finally:
        resize.__defaults__ = defaults


def stop_workers(loader: Any) -> None:
    """Stop the processes that a DataLoader keeps. Once it is garbage, torch waits 5 seconds for
    each of them, because Python closes their queues first.
    """
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()
        loader._iterator = None
