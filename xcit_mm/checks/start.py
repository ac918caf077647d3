"""What is checked as a run starts: of the doctor's checks those that cost a few seconds, up to the first failure."""

import os

from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from ..models.backbone import XCiT
from ..utils.errors import reason
from ..weights.matching import match_model
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from ..weights.reader import load_checkpoint
from .data import SPLITS, check_classes, check_data_sets, data_sets
from .findings import guard, refuse
from .model import build_model, check_channels, check_weights, class_heads, strict_load_hooks
from .preflight import check_backbone, check_checkpoint, check_data, check_precision

__all__ = ["check_test", "check_training", "is_first_process"]

# A second of reading; the doctor reads larger ones.
_MAX_JSON_BYTES = 30e6


def check_training(cfg: Config, amp: bool = False) -> None:
    """Check that training can start: backbone, data, model, weights.

    Every process of a run checks, so that all of them stop; the first process of a machine downloads weights.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain, with the `load_from` that will be used.
        amp: Whether mixed precision is asked for beside the config.

    Raises:
        ValueError, OSError: If it cannot; with the doctor's code where the doctor finds the same.
    """
    check_precision(cfg, amp)
    check_data(cfg, SPLITS)
    model = _model(cfg)
    heads = class_heads(model)
    refuse(guard(check_classes(cfg, heads), "D390", "correct the data sets in the config"))
    for split in SPLITS:
        if not _is_large(cfg, split):
            refuse(guard(check_data_sets(cfg, split, heads), "D391", f"correct the {split} data set"))
    if isinstance(getattr(model, "backbone", None), XCiT):
        if is_first_process():
            _fetch(cfg)
        refuse(guard(check_weights(cfg, model), "D790", "correct init_cfg and load_from"))


def check_test(cfg: Config, checkpoint: str, tta: bool = False) -> None:
    """Check that testing can start: backbone, data, model, and that the checkpoint fits, which is fetched if need be.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain.
        checkpoint: A path, a URL or `xcit://NAME`.
        tta: Whether with test-time augmentation.

    Raises:
        ValueError, OSError: If it cannot.
    """
    check_data(cfg, ["test"])
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
    """The config's model, without memory where possible, whose parts fit each other."""
    init_default_scope(cfg.default_scope)
    try:
        check_backbone(cfg, tta)
        model = build_model(cfg)
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        text = f"D601 the model cannot be built: {reason(error)} -- fix: correct the model in the config"
        raise ValueError(text) from None
    if isinstance(getattr(model, "backbone", None), XCiT):
        refuse(guard(check_channels(cfg, model), "D690", "correct neck and heads"))
    return model


def _is_large(cfg: Config, split: str) -> bool:
    """Whether to read the annotations of a split takes longer than a start may."""
    paths = (os.path.join(one.get("data_root") or "", one.get("ann_file") or "") for one in data_sets(cfg, split))
    return any(os.path.isfile(path) and os.path.getsize(path) > _MAX_JSON_BYTES for path in paths)


def _fetch(cfg: Config) -> None:
    """Download the weights that training begins with."""
    init_cfg = cfg.model.backbone.get("init_cfg") or []
    names = [one.get("checkpoint") for one in ([init_cfg] if isinstance(init_cfg, dict) else init_cfg)]
    for name in filter(None, [*names, cfg.get("load_from")]):
        if name.startswith(REMOTE_PREFIXES):
            ensure_downloaded(name)
