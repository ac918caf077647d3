"""The checks of a run: the doctor prints all of them, and the start of a run raises on the first failure."""

import os
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config
from torch import Tensor

from ..training.finite import is_finite
from ..utils.configs import data_sets, read_config
from ..utils.errors import reason
from ..weights.matching import match_model
from ..weights.models import find_config
from ..weights.reader import load_checkpoint
from .config import check_imports, check_launcher, check_recipe, find_script
from .data import SPLITS, check_classes, check_data_sets, check_drawings, check_overlap, check_paths
from .findings import Finding, fail, raise_first
from .model import build_checked_model, check_forward, class_heads
from .preflight import check_checkpoint
from .weights import check_weights, download_weights, strict_load_hooks

_MAX_JSON_BYTES = 30e6  # the start of a run reads this in a second, and leaves larger files to the doctor


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run: config, data, model, weights, machine.

    The environment variable `WORLD_SIZE` gives the number of processes, 1 by default.

    Args:
        config: A config of mmdet or mmseg, a model's name or a work folder.
        argv: Command line with the `--cfg-options` that change the config.
    """
    try:
        config = find_config(config)
        cfg = read_config(config, argv)
        find_script(cfg, config, "train")
    except Exception as error:  # a config is a program
        yield fail("", reason(error), "correct the config")
        return
    yield from check_imports(cfg)
    for finding in check_launcher("pytorch" if _processes() > 1 else None):  # the run may be on another machine
        yield finding._replace(level="note")
    yield from _check_run(cfg)
    for split in ("val", "test") if not cfg.get("val_dataloader") else ("val",):
        yield from (
            found for found in check_overlap(cfg, split) if found.level == "note"
        )  # failures are reported above


def check_training(cfg: Config) -> None:
    """Check that training can start. Raise ValueError or OSError if it cannot.

    Every process of a run checks, so that all of them stop. The first process of a machine downloads weights.
    """
    raise_first(check_paths(cfg, SPLITS), FileNotFoundError)
    raise_first(_check_run(cfg, start=True))


def _check_run(cfg: Config, start: bool = False) -> Iterator[Finding]:
    """Check model, data and weights. The start of a run leaves large jsons to the doctor, and downloads weights."""
    model, finding = build_checked_model(cfg)
    heads, processes = class_heads(model), _processes()
    yield finding
    yield from check_classes(cfg, heads)
    for split in SPLITS:
        if not (start and _is_large(cfg, split)):
            yield from check_data_sets(cfg, split, heads)
    yield from check_recipe(cfg, processes)
    if start and is_first_process():
        download_weights(cfg)
    yield from check_weights(cfg, model)
    yield from check_forward(cfg, model, processes)


def check_test(cfg: Config, checkpoint: str, tta: bool = False, drawn: bool = False) -> list[Finding]:
    """Check that testing can start: data, model, checkpoint. Raise ValueError or OSError if it cannot.

    The first process of a machine downloads the checkpoint: a path, a URL or `xcit://NAME`.

    Returns:
        Notes that are of interest whatever the scores are.
    """
    raise_first(check_paths(cfg, ["test"]), FileNotFoundError)
    check_checkpoint(checkpoint)
    model, finding = build_checked_model(cfg, tta)
    raise_first([finding, *check_forward(cfg, model)])
    if "://" in checkpoint and not is_first_process():
        return []
    content = load_checkpoint(checkpoint)
    if any(hook.get("strict_heads", True) for hook in strict_load_hooks(cfg)):
        try:
            match_model(model, content)
        except ValueError as error:
            raise ValueError(f"{checkpoint}: {error}") from None
    if _is_large(cfg, "test") or _is_large(cfg, "train"):
        return []
    return [*check_overlap(cfg, "test"), *(check_drawings(cfg) if drawn else [])]


def _processes() -> int:
    """Return the number of processes that `WORLD_SIZE` gives. Scripts may pass on an unset variable."""
    given = os.environ.get("WORLD_SIZE") or "1"
    return int(given) if given.isdecimal() else 1


def is_first_process() -> bool:
    """Whether this process is the first of its machine, by the variables of torchrun, Slurm and Open MPI."""
    names = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0) == 0


def _is_large(cfg: Config, split: str) -> bool:
    paths = (os.path.join(data.get("data_root") or "", data.get("ann_file") or "") for data in data_sets(cfg, split))
    return any(os.path.isfile(path) and os.path.getsize(path) > _MAX_JSON_BYTES for path in paths)


def check_resume(checkpoint: str, work_dir: Path) -> None:
    """Check that a run can resume from a checkpoint.

    Raises:
        ValueError: If the checkpoint is missing, broken or not finite, or holds weights only. The message names the
            newest complete checkpoint of the folder.
    """
    if wrong := _cannot_resume(checkpoint):
        complete = newest_checkpoint(work_dir)
        fix = f"resume from {complete}: --resume {complete}" if complete else f"{work_dir} has no complete checkpoint"
        raise ValueError(f"cannot resume from {checkpoint}: {wrong}; {fix}")


def newest_checkpoint(work_dir: Path) -> Path | None:
    """Return the newest complete checkpoint of a run's folder, or None."""
    paths = [path for kind in ("iter", "epoch") for path in work_dir.glob(f"{kind}_*.pth")]
    newest_first = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in newest_first if not _cannot_resume(str(path))), None)


def _cannot_resume(checkpoint: str) -> str:
    """Return why mmengine cannot resume from a checkpoint, or ''."""
    try:
        content = load_checkpoint(checkpoint)
    except (OSError, ValueError) as error:
        return str(error)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not {"epoch", "iter"} <= meta.keys() or content.get("message_hub") is None:
        return "it holds weights, not the state of a training run of mmengine: start from it with load_from"
    state = content.get("state_dict")
    tensors = [value for value in state.values() if isinstance(value, Tensor)] if isinstance(state, dict) else []
    return "" if is_finite(tensors) else "its weights or BatchNorm statistics are not finite"
