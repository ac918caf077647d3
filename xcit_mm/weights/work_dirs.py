"""The folder of a training: its config, its last checkpoint and the best one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.errors import preview
from .reader import load_from_file, meta_of

CHECKPOINT_SUFFIXES = (".pth", ".safetensors", ".bin", ".pt", ".pth.tar", ".ckpt")
# The weights of a repository of the Hub, which may have both and other files of these suffixes. The
# first in the alphabet is read.
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")

# Beginning of the keys under which mmengine's CheckpointHook stores the best checkpoint.
# The name of a metric follows if there are several.
_BEST = "best_ckpt"
# What a config assigns differently when its run resumes.
_CHANGED_BY_RESUMING = ("load_from = ", "resume = ", "work_dir = ", "launcher = ")


class Model(NamedTuple):
    """Where the parts of a model are.

    Attributes:
        config: Path of its config, or None.
        checkpoint: Path, URL or `xcit://NAME` of its weights, or None.
        problem: Why one of them is None, and what to do.
    """

    config: str | None
    checkpoint: str | None
    problem: str = ""


def find_in(folder: Path) -> Model:
    """Find config and checkpoint of the model in a folder.

    In the folder of a training, the last checkpoint has the text of its config and names the best
    checkpoint. Without a best one the last is taken. A named checkpoint may be missing from the
    disk. Another folder is a model if it has one config and one checkpoint.
    """
    last = last_checkpoint(folder)
    configs = sorted(folder.glob("[!.]*.py"))
    try:
        content = load_from_file(last) if last and Path(last).is_file() else None
    except ValueError as error:  # another checkpoint may be given in its place
        return Model(_choose_config(configs, None), None, str(error))
    trained = meta_of(content).get("cfg")
    config = _choose_config(configs, trained)
    checkpoints = [_best_checkpoint(last, content)] if last else _list_checkpoints(folder)
    checkpoint = checkpoints[0] if len(checkpoints) == 1 else None
    problems = []
    if config is None:
        needed = f"the config of {last}" if trained else "one config"
        problems.append(f"{needed}, but has {_names(configs)}")
    if checkpoint is None:
        problems.append(f"one checkpoint, but has {_names(checkpoints)}")
    problem = f"{folder} must have {', and '.join(problems)}: give config and checkpoint"
    return Model(config, checkpoint, problem if problems else "")


def _choose_config(configs: list[Path], trained: str | None) -> str | None:
    """Return the config with the text of a checkpoint, or the only one if it has no text."""
    if trained:
        lines = _lines_of_run(trained)
        configs = [path for path in configs if _lines_of_run(path.read_text("utf-8")) == lines][:1]
    return str(configs[0]) if len(configs) == 1 else None


def _lines_of_run(config: str) -> list[str]:
    """Return the lines of a config, as mmengine writes it, that stay when its run resumes."""
    return [line for line in config.splitlines() if not line.startswith(_CHANGED_BY_RESUMING)]


def _best_checkpoint(last: str, content: Any) -> str:
    """Return the best checkpoint that the last one names, or else the last one.

    If there are several metrics, the one that had a best checkpoint first counts.
    """
    hub = content.get("message_hub") if isinstance(content, Mapping) else None
    info = (hub or {}).get("runtime_info") or {}
    best = [file for key, file in info.items() if key.startswith(_BEST) and file]
    return str(Path(last).with_name(Path(best[0]).name)) if best else last


def _list_checkpoints(folder: Path) -> list[str]:
    """List the checkpoints in a folder. A repository of the Hub counts as one.

    Hidden files do not count: a kill may have left them unfinished.
    """
    visible = folder.glob("[!.]*")
    files = sorted(path for path in visible if path.name.endswith(CHECKPOINT_SUFFIXES))
    of_hub = [path for path in files if path.name in _HUB_FILES]
    return list(map(str, of_hub[:1] or files))


def _names(paths: Iterable[str | Path]) -> str:
    return preview([Path(path).name for path in paths]) or "none"


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, or None. The file may be missing.

    Work folders may be moved, so a file with the recorded name in the folder is preferred. The
    recorded path is used for URLs and for checkpoints that were saved elsewhere.
    """
    pointer = work_dir / "last_checkpoint"
    saved = pointer.read_text("utf-8").strip() if pointer.is_file() else ""
    if saved:
        file = work_dir / Path(saved).name
        is_in_work_dir = file.is_file() or Path(saved).with_name(pointer.name).exists()
        is_elsewhere = "://" in saved or (Path(saved).is_file() and not is_in_work_dir)
        return saved if is_elsewhere else str(file)
    # A kill came before the path was written.
    files = [*work_dir.glob("iter_*.pth"), *work_dir.glob("epoch_*.pth")]
    numbers = {path.stem.rpartition("_")[2]: str(path) for path in files}
    last = max((number for number in numbers if number.isdigit()), key=int, default="")
    return numbers.get(last)
