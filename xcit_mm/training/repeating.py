"""What repeats a run: the record beside a checkpoint, and operators that give other results every time."""

import copy
import os
import platform
import shlex
import sys
import warnings
from hashlib import sha256
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor

from ..utils.compat import without_process_group
from ..utils.configs import data_sets
from .random_state import get_random_state, set_random_state

_PACKAGES = ("xcit_mm", "torch", "torchvision", "numpy", "cv2", "mmengine", "mmcv", "mmdet", "mmseg", "mmpretrain")


class NotDeterministic(RuntimeError):
    """A deterministic run has operators without a deterministic implementation."""


def describe_run(runner: Runner) -> dict[str, Any]:
    """Return the values that determine the weights of a run, besides its data, as plain values."""
    modules = {name: sys.modules[name] for name in _PACKAGES if name in sys.modules}
    versions = {name: getattr(module, "__version__", "") for name, module in modules.items()}
    cuda = torch.cuda.is_available()
    return dict(
        command=shlex.join(sys.orig_argv),
        seed=runner.seed,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        processes=get_world_size(),
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        versions=versions | dict(python=platform.python_version(), cuda=torch.version.cuda),
        config=runner.cfg.pretty_text,
    )


def hash_data(cfg: Config) -> str:
    """Return the SHA-256 of the training data: the annotation files, and the names and sizes of all other files."""
    digest = sha256()
    for data in data_sets(cfg, "train"):
        prefix = data.get("data_prefix") or {}
        names = [data.get("ann_file"), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
        for path in (os.path.join(data.get("data_root") or "", name) for name in names if isinstance(name, str)):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    for block in iter(lambda: file.read(1 << 20), b""):
                        digest.update(block)
            for folder, folders, files in os.walk(path, followlinks=True):
                folders.sort()
                for name in sorted(files):
                    file_path = os.path.join(folder, name)
                    size = os.path.getsize(file_path) if os.path.exists(file_path) else "broken link"
                    digest.update(f"{os.path.relpath(file_path, path)}\0{size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def hash_weights(state_dict: dict[str, Tensor]) -> str:
    """Return the SHA-256 of the names and values of weights on the CPU."""
    digest = sha256()
    for name in sorted(state_dict):
        digest.update(name.encode())
        digest.update(state_dict[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def raise_if_not_deterministic(runner: Runner) -> None:
    """Compute the gradients of one sample with a copy of the model, if deterministic algorithms are enabled.

    Raises:
        NotDeterministic: If operators have no deterministic implementation. The message names all of them.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return
    loader: Any = runner.train_dataloader
    model = copy.deepcopy(runner.model.module if is_model_wrapper(runner.model) else runner.model).train()
    state = get_random_state()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as caught, without_process_group():
            warnings.simplefilter("always")
            batch = loader.collate_fn([loader.dataset[(0, 0, 0), 0]] * 2)  # BatchNorm needs two
            with runner.optim_wrapper.optim_context(model):
                data = model.data_preprocessor(batch, training=True)
                losses = model(**data, mode="loss") if isinstance(data, dict) else model(*data, mode="loss")
            model.parse_losses(losses)[0].backward()
    finally:
        torch.use_deterministic_algorithms(True)
        set_random_state(state)
    texts = [str(warning.message) for warning in caught if "use_deterministic_algorithms" in str(warning.message)]
    if texts:
        names = ", ".join(sorted({text.split(" does not have")[0].split(". ")[0] for text in texts}))
        raise NotDeterministic(f"operators without a deterministic implementation: {names}; leave --deterministic out")
