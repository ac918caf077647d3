"""Private names and older versions of other libraries.

All patches of other libraries are in this module, and each is undone after the call.
"""

import multiprocessing
import pickle
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model.utils import _BatchNormXd
from mmengine.runner import BaseLoop, CheckpointLoader, Runner, checkpoint
from mmengine.utils import digit_version
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import _utils, nn, serialization
from torch.nn.modules import module as _all_modules

# torch 2.13 has no public base class of BatchNorm layers and SyncBatchNorm.
BatchNorm = torch.nn.modules.batchnorm._BatchNorm
# The layers of torch and mmengine (0.10.7), and what mmengine makes of a SyncBatchNorm. Subclasses
# are not listed, since they may compute anything.
BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, SyncBatchNorm, _BatchNormXd)

# mmcv 2.1: the module of the compiled operators, which xcit_mm.ops replaces.
MMCV_OPERATORS = "mmcv._ext"

TORCH = digit_version(torch.__version__)[:2]
"""Version of torch, such as (2, 1)."""

# An unpickler with operations that a subclass can replace, and the functions that rebuild tensors
# from a file of `torch.save`.
PythonUnpickler: Any = pickle._Unpickler
TENSOR_FUNCTIONS = (_utils._rebuild_tensor, _utils._rebuild_tensor_v2, _utils._rebuild_parameter)


def python3_name(module: str, name: str) -> tuple[str, str]:
    """Return module and name in Python 3 for those in a pickle of protocol 2."""
    module, name = NAME_MAPPING.get((module, name), (module, name))
    return IMPORT_MAPPING.get(module, module), name


def is_torchscript(path: Path) -> bool:
    """Return whether a zip archive holds code that `torch.load` would run."""
    with serialization._open_zipfile_reader(str(path)) as archive:
        return serialization._is_torchscript_zip(archive)


def is_compiling() -> bool:
    """Return whether torch compiles or exports. The public function exists from torch 2.3 on."""
    if TORCH < (2, 3):
        return torch._utils.is_compiling()
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Return whether torch.export makes a graph.

    torch has a function from 2.7 on, but in 2.7 it is also true in torch.compile.
    """
    return TORCH >= (2, 8) and torch.compiler.is_exporting()


def is_in_backward() -> bool:
    """Return whether autograd runs a backward pass.

    torch.utils.checkpoint calls modules again in it. torch (2.13) has no public function for this.
    """
    return torch._C._current_graph_task_id() != -1


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the type of autocast on a type of device, or None where it is off.

    Functions of torch take the device from 2.4 on.
    """
    if TORCH >= (2, 4):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def roi_align_backward_kernel(torchvision_kernels: Any) -> Callable[..., torch.Tensor]:
    """Return the gradient of torchvision's roi_align, which has no public name."""
    return torchvision_kernels._roi_align_backward


def import_in_spawned_processes(function: Callable[[], None]) -> None:
    """Make the processes that this one spawns import a function's module first.

    multiprocessing (Python 3.13) has no option for it, but it gives them this dict first.
    """
    process: Any = multiprocessing.current_process()
    process._config["imported first"] = function


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks act on a module or submodule, or whether a `forward` is replaced."""
    return any(map(is_hooked, module.modules()))


def is_hooked(module: nn.Module, harmless: tuple = ()) -> bool:
    """Return whether hooks act on a module itself, or whether its `forward` is replaced.

    torch (2.13) has no public function that lists hooks.

    Args:
        harmless: Forward pre-hooks that do not count.
    """
    everywhere = _all_modules._global_forward_hooks or _all_modules._global_forward_pre_hooks
    backward_everywhere = (
        _all_modules._global_backward_hooks or _all_modules._global_backward_pre_hooks
    )
    before = [hook for hook in module._forward_pre_hooks.values() if hook not in harmless]
    forward = before or module._forward_hooks or "forward" in module.__dict__
    backward = module._backward_hooks or module._backward_pre_hooks
    return bool(everywhere or backward_everywhere or forward or backward)


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute `F.linear` of float32 on a CPU by oneDNN, without a gradient.

    torch (2.13) takes MKL and has no option for it. MKL has half the speed on AMD's processors with
    AVX512.
    """
    bias = None if bias is None else bias.contiguous()  # its strides are not read
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "none")


@contextmanager
def find_bases_by_package() -> Iterator[None]:
    """Make mmengine (0.10.7) find `_base_ = 'PACKAGE::CONFIG'` by the import name of the package.

    mmengine finds it by the name of the distribution, which differs between the stacks for mmseg.
    It needs `pkg_resources`, which setuptools 82 removed. And it gives the parts of a base the
    scope PACKAGE, but the parts of this package's configs belong to their `default_scope`.
    """
    find_base = Config._get_cfg_path  # the libraries' scripts call it, and no subclass of ours

    def find(base: str, filename: str) -> tuple[str, str | None]:
        """Return the path of a base config, and the scope for its parts, or None for no scope."""
        package, separator, path = base.partition("::")
        if not separator:
            return find_base(base, filename)
        spec = find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(f"{base}: {package} is not installed: install it")
        config = Path(str(spec.origin)).parent / ".mim" / "configs" / path
        return str(config), None if package == "xcit_mm" else package

    Config._get_cfg_path = staticmethod(find)
    try:
        yield
    finally:
        Config._get_cfg_path = staticmethod(find_base)


@contextmanager
def load_files_by(loader: Callable[..., Any]) -> Iterator[None]:
    """Make mmengine (0.10.7) load checkpoints from the web by another function in this block.

    Its own function runs what a file contains. Below torch 2.6 it does so for local files too.
    """
    own_loader = checkpoint.load_from_http  # also of torchvision://, open-mmlab:// and mmcls://
    own_schemes = CheckpointLoader._schemes
    # These call torch.load themselves, not `load_from_http`.
    local = (checkpoint.load_from_local, checkpoint.load_from_ceph, checkpoint.load_from_pavi)
    replaced = {own_loader, *local} if TORCH < (2, 6) else {own_loader}
    CheckpointLoader._schemes = {
        scheme: loader if own in replaced else own for scheme, own in own_schemes.items()
    }
    checkpoint.load_from_http = loader
    try:
        yield
    finally:
        CheckpointLoader._schemes = own_schemes
        checkpoint.load_from_http = own_loader


def is_resuming(runner: Runner) -> bool:
    """Return whether a run of mmengine (0.10.7) resumes."""
    return runner._resume


def train_dataloader_config(runner: Runner) -> Any:
    """Return the training data of a run of mmengine (0.10.7), a config or a loader.

    `runner.cfg` has none if the run was not made from a config.
    """
    return runner._train_dataloader


def is_training_run(runner: Runner) -> bool:
    """Return whether a run of mmengine (0.10.7) has a training loop. `train_loop` builds one."""
    return isinstance(runner._train_loop, BaseLoop)


def running_dataset(runner: Runner) -> Any:
    """Return the data set of the training, test or validation that runs, or None."""
    loops: Any = (runner._train_loop, runner._test_loop, runner._val_loop)
    built = (loop.dataloader.dataset for loop in loops if isinstance(loop, BaseLoop))
    return next(built, None)


def gdal_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of rasterio (1.4) and of GDAL.

    Writing and closing raise GDAL's exceptions, which `rasterio.errors` does not export.
    """
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    return RasterioError, CPLE_BaseError


@contextmanager
def without_resize_warning() -> Iterator[None]:
    """Make mmseg (1.2) resize without its warning about aligned corners in this block.

    The warning calls int(), which makes the sizes constants of an exported graph.
    """
    # Heads import the function by name, and none passes its option on.
    from mmseg.models.utils import resize

    defaults = resize.__defaults__
    resize.__defaults__ = (*defaults[:-1], False)  # the last default is for `warning`
    try:
        yield
    finally:
        resize.__defaults__ = defaults
