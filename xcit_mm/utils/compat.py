"""Private names of other libraries, each with the reason for its use and the library's version.

No other module uses one, but `weights` knows those in checkpoints. Libraries other than torch are
imported on use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from logging import WARNING, FileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules import module as _all_modules

if TYPE_CHECKING:
    from mmengine.runner import Runner

# torch 2.13: the base class of every BatchNorm layer, SyncBatchNorm included. The public classes
# are siblings without a public base class.
BatchNorm = torch.nn.modules.batchnorm._BatchNorm


# mmcv 2.1: the module of the compiled operators, which xcit_mm.ops replaces. mmcv.ops imports it.
MMCV_OPERATORS = "mmcv._ext"


def roi_align_backward_kernel(torchvision_kernels: Any) -> Callable[..., torch.Tensor]:
    """Return the operator of torchvision's gradient of roi_align, which has no public name."""
    return torchvision_kernels._roi_align_backward


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks act on a module or submodule, or one has another `forward`.

    torch (2.13) has public functions to register hooks, but none to list them.
    """
    forward = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    everywhere = _all_modules._global_forward_hooks or _all_modules._global_forward_pre_hooks
    hooked = forward or everywhere or module._backward_hooks or module._backward_pre_hooks
    return bool(hooked) or any(has_hooks(child) for child in module.children())


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute `F.linear` of float32 on a CPU by oneDNN, without a gradient.

    torch (2.13) takes MKL, which multiplies at half speed on AMD's processors with AVX512, and has
    no option for float32.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@contextmanager
def find_bases_by_package() -> Iterator[None]:
    """Make mmengine (0.10.7) find `_base_ = 'PACKAGE::CONFIG'` by the import name of the package.

    mmengine asks setuptools, which from 82 on lacks `pkg_resources`, for the name of a
    distribution, which for mmseg differs between the stacks. And it gives every part of such a base
    the scope PACKAGE, in which it looks for its class: the parts of this package's configs belong
    to their `default_scope`. mmengine has no option for either.
    """
    from mmengine.config import Config

    find_base = Config._get_cfg_path

    def find(base: str, filename: str) -> tuple[str, str | None]:
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

    with patch.object(Config, "_get_cfg_path", staticmethod(find)):
        yield


@contextmanager
def add_hooks_to_runs(*hooks: Any) -> Iterator[None]:
    """Give every `Runner` of mmengine that is made in this block further hooks.

    The libraries' scripts make it from a config, which can name registered hooks only.
    """
    from mmengine.runner import Runner

    init = Runner.__init__

    @wraps(init)
    def init_with_hooks(runner: "Runner", *args: Any, **kwargs: Any) -> None:
        init(runner, *args, **kwargs)
        for hook in hooks:
            runner.register_hook(hook)

    with patch.object(Runner, "__init__", init_with_hooks):
        yield


@contextmanager
def load_urls_by(loader: Callable[..., Any]) -> Iterator[None]:
    """Make mmengine (0.10.7) load checkpoints of the web by another function, in this block.

    Its own runs what a file contains. A registered loader would be that of all programs.
    """
    from mmengine.runner import CheckpointLoader

    loaders = CheckpointLoader._schemes | {"http://": loader, "https://": loader}
    with patch.object(CheckpointLoader, "_schemes", loaders):
        yield


Class = TypeVar("Class", bound=type)


def log_initialization_to_file_only(module_class: Class) -> Class:
    """Decorate a `BaseModule` so that mmengine (0.10.7) keeps its note on each parameter from the
    screen.

    mmengine prints the notes where there is no log file, without an option.
    """
    from mmengine.logging import MMLogger

    log = module_class._dump_init_info  # type: ignore[attr-defined]

    def log_to_file(module: nn.Module) -> None:
        if any(
            isinstance(handler, FileHandler) for handler in MMLogger.get_current_instance().handlers
        ):
            log(module)

    module_class._dump_init_info = log_to_file  # type: ignore[attr-defined]
    return module_class


@contextmanager
def log_config_to_file_only() -> Iterator[None]:
    """Make `Runner` of mmengine (0.10.7) log the environment and the config, 1,800 lines, to its
    file only.
    """
    from mmengine.runner import Runner

    log = Runner._log_env

    def log_to_file(runner: "Runner", env_cfg: dict) -> None:
        handlers = [
            handler for handler in runner.logger.handlers if not isinstance(handler, FileHandler)
        ]
        levels = [handler.level for handler in handlers]
        for handler in handlers:
            handler.setLevel(WARNING)
        log(runner, env_cfg)
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)

    with patch.object(Runner, "_log_env", log_to_file):
        yield


def is_resuming(runner: "Runner") -> bool:
    """Whether a run of mmengine (0.10.7) resumes. Hooks of mmengine read the same attribute."""
    return runner._resume


def train_dataloader_config(runner: "Runner") -> Any:
    """Return the config of the training data, or the loader, that a run of mmengine (0.10.7) was
    given.

    `runner.cfg` lacks it if the run was not made from a config, and `runner.train_dataloader` is
    the loader.
    """
    return runner._train_dataloader


def is_training_run(runner: "Runner") -> bool:
    """Whether a run of mmengine (0.10.7) trains: only then it builds its loop, as the public
    `train_loop` would.
    """
    from mmengine.runner import BaseLoop

    return isinstance(runner._train_loop, BaseLoop)


def gdal_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that rasterio (1.4) raises for errors of GDAL.

    Writing and closing raise GDAL's own errors unwrapped, whose base class `rasterio.errors` does
    not export.
    """
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    return RasterioError, CPLE_BaseError


def without_resize_warning() -> Any:
    """Return a context in which mmseg (1.2) resizes without its warning about aligned corners, as
    its default.

    The warning calls int() on sizes, which makes them constants of a traced graph. Heads do not
    pass the option on.
    """
    from mmseg.models.utils import resize

    return patch.object(resize, "__defaults__", (*resize.__defaults__[:-1], False))
