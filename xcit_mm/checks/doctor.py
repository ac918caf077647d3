"""The checks of a run: the doctor prints all of them, and the start of a run raises on the first failure."""

import os
from collections.abc import Iterator

from mmengine.config import Config

from ..utils.configs import data_sets, read_config
from ..utils.errors import reason
from ..weights.matching import match_model
from ..weights.models import find_config
from ..weights.reader import load_checkpoint
from .config import check_imports, check_recipe, find_script
from .data import SPLITS, check_classes, check_data_sets, check_drawings, check_overlap, check_paths
from .findings import Finding, fail, raise_first
from .model import build_checked_model, check_forward, class_heads
from .preflight import check_checkpoint
from .weights import check_weights, download_weights, strict_load_hooks

_MAX_JSON_BYTES = 30e6  # the start of a run reads this in a second, and leaves larger files to the doctor


def diagnose(config: str, argv: list[str]) -> Iterator[Finding]:
    """Check a training run: config, data, model, weights.

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
    yield from _check_run(cfg)
    found = check_overlap(cfg, "val" if cfg.get("val_dataloader") else "test")
    yield from (each for each in found if each.level == "note")  # failures are reported above


def check_training(cfg: Config) -> None:
    """Check that training can start. Raise ValueError or OSError if it cannot.

    Every process of a run checks, so that all of them stop. The first process of a machine downloads weights.
    """
    raise_first(check_paths(cfg, SPLITS), FileNotFoundError)
    raise_first(_check_run(cfg, start=True))


def _check_run(cfg: Config, start: bool = False) -> Iterator[Finding]:
    """Check model, data and weights. The start of a run leaves large jsons to the doctor, and downloads weights."""
    model, finding = build_checked_model(cfg)
    processes = os.environ.get("WORLD_SIZE", "")
    number, heads = int(processes) if processes.isdecimal() else 1, class_heads(model)
    yield finding
    yield from check_classes(cfg, heads)
    for split in SPLITS:
        if not (start and _is_large(cfg, split)):
            yield from check_data_sets(cfg, split, heads)
    yield from check_recipe(cfg, number)
    if start and is_first_process():
        download_weights(cfg)
    yield from check_weights(cfg, model)
    yield from check_forward(cfg, model, number)


def check_test(cfg: Config, checkpoint: str, drawn: bool = False) -> list[Finding]:
    """Check that testing can start: data, model, checkpoint. Raise ValueError or OSError if it cannot.

    The first process of a machine downloads the checkpoint: a path, a URL or `xcit://NAME`.

    Returns:
        Notes that are of interest whatever the scores are.
    """
    raise_first(check_paths(cfg, ["test"]), FileNotFoundError)
    check_checkpoint(checkpoint)
    model, finding = build_checked_model(cfg)
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


def check_resume(checkpoint: str) -> None:
    """Raise ValueError or OSError unless a checkpoint can be read and holds the state of a run of mmengine."""
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not {"epoch", "iter"} <= meta.keys() or content.get("message_hub") is None:
        fix = "start from it with load_from"
        raise ValueError(f"cannot resume from {checkpoint}: it holds weights, not the state of a run: {fix}")


def is_first_process() -> bool:
    """Whether this process is the first of its machine, by the variables of torchrun, Slurm and Open MPI."""
    names = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0) == 0


def _is_large(cfg: Config, split: str) -> bool:
    paths = (os.path.join(data.get("data_root") or "", data.get("ann_file") or "") for data in data_sets(cfg, split))
    return any(os.path.isfile(path) and os.path.getsize(path) > _MAX_JSON_BYTES for path in paths)
