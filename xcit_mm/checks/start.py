"""Check a run as it starts, with the doctor's checks that take seconds, and raise on the first failure."""

import os

from mmengine.config import Config
from torch import nn

from ..utils.configs import data_sets
from ..weights.matching import match_model
from ..weights.reader import load_checkpoint
from .data import SPLITS, check_classes, check_data_sets, check_paths
from .findings import raise_first
from .machine import check_precision
from .model import build_checked_model, check_channels, class_heads
from .preflight import check_checkpoint
from .schedule import check_parts
from .weights import check_weights, download_weights, strict_load_hooks

__all__ = ["check_test", "check_training", "is_first_process"]

_MAX_JSON_BYTES = 30e6  # the start of a run reads this in a second, and leaves larger files to the doctor


def check_training(cfg: Config, amp: bool = False) -> None:
    """Check that training can start: precision, data, model, weights.

    Every process of a run checks, so that all of them stop. The first process of a machine downloads weights.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain, with the final `load_from`.
        amp: Whether the command line sets `--amp`.

    Raises:
        ValueError, OSError: If training cannot start. The message has the doctor's code and a fix.
    """
    raise_first(check_precision(cfg, amp))
    raise_first(check_paths(cfg, SPLITS), FileNotFoundError)
    model = _model(cfg)
    heads = class_heads(model)
    raise_first(check_parts(cfg))
    raise_first(check_classes(cfg, heads))
    for split in SPLITS:
        if not _is_large(cfg, split):
            raise_first(check_data_sets(cfg, split, heads))
    if is_first_process():
        download_weights(cfg)
    raise_first(check_weights(cfg, model))


def check_test(cfg: Config, checkpoint: str, tta: bool = False) -> None:
    """Check that testing can start: data, model, checkpoint.

    The first process of a machine downloads the checkpoint.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain.
        checkpoint: A path, a URL or `xcit://NAME`.
        tta: Whether the test uses test-time augmentation.

    Raises:
        ValueError, OSError: If testing cannot start.
    """
    raise_first(check_paths(cfg, ["test"]), FileNotFoundError)
    check_checkpoint(checkpoint)
    model = _model(cfg, tta)
    if "://" in checkpoint and not is_first_process():
        return
    content = load_checkpoint(checkpoint)
    if any(hook.get("strict_heads", True) for hook in strict_load_hooks(cfg)):
        try:
            match_model(model, content)
        except ValueError as error:
            raise ValueError(f"{checkpoint}: {error}") from None


def is_first_process() -> bool:
    """Whether this process is the first of its machine, by the variables of torchrun, Slurm and Open MPI."""
    names = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0) == 0


def _model(cfg: Config, tta: bool = False) -> nn.Module:
    model, finding = build_checked_model(cfg, tta)
    raise_first([finding, *check_channels(cfg, model)])
    return model


def _is_large(cfg: Config, split: str) -> bool:
    paths = (os.path.join(data.get("data_root") or "", data.get("ann_file") or "") for data in data_sets(cfg, split))
    return any(os.path.isfile(path) and os.path.getsize(path) > _MAX_JSON_BYTES for path in paths)
