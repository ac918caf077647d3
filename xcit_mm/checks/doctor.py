"""The checks of a run: all of them for the doctor, those that take seconds at the start of a run."""

import os
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config
from torch import Tensor, nn

from ..training.nonfinite_search import is_finite
from ..utils.configs import data_sets, read_config
from ..utils.errors import reason
from ..weights.matching import match_model
from ..weights.models import find_config
from ..weights.reader import load_checkpoint
from .config import check_batch, check_ignored_labels, check_imports, find_script
from .data import SPLITS, check_classes, check_data_sets, check_overlap, check_paths
from .findings import Finding, fail, note, raise_first
from .machine import check_disk, check_launcher, check_precision
from .model import build_checked_model, check_channels, check_norms, class_heads
from .preflight import check_checkpoint
from .schedule import check_input, check_optimizer, check_parts, check_schedule
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
        yield fail("D201", reason(error), "correct the config")
        return
    yield from check_imports(cfg)
    model, finding = build_checked_model(cfg)
    yield finding
    heads = class_heads(model)
    batch_size = (cfg.get("train_dataloader") or {}).get("batch_size", 1)
    given = os.environ.get("WORLD_SIZE") or "1"
    processes = int(given) if given.isdecimal() else 0
    if processes < 1:
        yield fail("D203", f"WORLD_SIZE={given} is not a number of processes", "set it to 1 or more, or unset it")
        processes = 1
    yield from check_classes(cfg, heads)
    for split in SPLITS:
        yield from check_data_sets(cfg, split, heads)
    yield from (finding for finding in check_overlap(cfg) if finding.level == "note")  # failures are reported above
    yield from check_ignored_labels(cfg, heads)
    yield from check_parts(cfg)
    yield from check_input(cfg, bool(getattr(model, "with_mask", False)))
    yield from check_channels(cfg, model)
    yield from check_weights(cfg, model)
    yield from check_batch(cfg, batch_size, processes)
    yield from check_optimizer(cfg)
    yield from check_schedule(cfg)
    yield from check_norms(model, batch_size, processes)
    for finding in check_precision(cfg):  # the run may be on another machine
        yield note("D206", finding.text, finding.fix)
    for finding in check_launcher("pytorch" if processes > 1 else None):
        yield note("D220", finding.text, finding.fix)
    yield from check_disk(cfg, config, model)


def check_training(cfg: Config, amp: bool = False) -> None:
    """Check that training can start: precision, data, model, weights. Raise ValueError or OSError if it cannot.

    Every process of a run checks, so that all of them stop. The first process of a machine downloads weights.
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
    """Check that testing can start: data, model, checkpoint. Raise ValueError or OSError if it cannot.

    The first process of a machine downloads the checkpoint: a path, a URL or `xcit://NAME`.
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


def check_resume(checkpoint: str, work_dir: Path) -> None:
    """Check that a run can resume from a checkpoint.

    Raises:
        ValueError: If the checkpoint is missing, broken or not finite, or holds weights only. The message names the
            newest complete checkpoint of the folder.
    """
    try:
        _training_state(checkpoint)
    except (OSError, ValueError) as error:
        paths = [path for path in work_dir.glob("*.pth") if path.stem.startswith(("iter_", "epoch_", "latest"))]
        newest_first = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
        complete = next((path for path in newest_first if path != Path(checkpoint) and _is_complete(path)), None)
        fix = f"resume from {complete}: --resume {complete}" if complete else f"{work_dir} has no complete checkpoint"
        raise ValueError(f"cannot resume from {checkpoint}: {error}; {fix}") from None


def _training_state(checkpoint: str) -> dict:
    """Read a checkpoint from which mmengine can resume."""
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not {"epoch", "iter"} <= meta.keys() or content.get("message_hub") is None:
        raise ValueError("it holds weights, not the state of a training run of mmengine: start from it with load_from")
    state = content.get("state_dict")
    values = state.values() if isinstance(state, dict) else ()
    if not all(is_finite(value) for value in values if isinstance(value, Tensor)):  # nested lists may have no end
        raise ValueError("its weights or BatchNorm statistics are not finite")
    return content


def _is_complete(path: Path) -> bool:
    try:
        return bool(_training_state(str(path)))
    except (OSError, ValueError):
        return False
