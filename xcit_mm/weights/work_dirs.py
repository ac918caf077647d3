"""The folder of a training: its config, its last checkpoint and the best that it recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..utils.errors import preview
from .reader import load_from_file, meta_of

CHECKPOINT_SUFFIXES = (".pth", ".safetensors", ".bin", ".pt", ".pth.tar", ".ckpt")
# The weights of a repository of the Hub, which may have both and other files of these suffixes.
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")

# Beginning of the keys under which mmengine's CheckpointHook stores the best checkpoint.
# The name of a metric follows if there are several.
BEST = "best_ckpt"
# What a config assigns differently when its run resumes.
_CHANGED_BY_RESUMING = ("load_from = ", "resume = ", "work_dir = ", "launcher = ")


def find_config_in(folder: Path) -> str:
    """Return the config of a training's folder: the one whose text the last checkpoint has, or the
    only one if it has none.

    Raises:
        FileNotFoundError: If the folder has no such config, or several.
        ValueError: If the last checkpoint cannot be read.
    """
    configs = sorted(folder.glob("*.py"))
    names = ", ".join(path.name for path in configs) or "none"
    needed = "one config"
    trained = meta_of(_read_last(folder)).get("cfg")
    if trained:
        needed = f"the config of {last_checkpoint(folder)}"
        lines = _lines_of_run(trained)
        configs = [path for path in configs if _lines_of_run(path.read_text("utf-8")) == lines][:1]
    if len(configs) != 1:
        fix = "give config and checkpoint"
        raise FileNotFoundError(f"{folder} must have {needed}, but has {names}: {fix}")
    return str(configs[0])


def _lines_of_run(config: str) -> list[str]:
    """Return the lines of a config, as mmengine writes it, that stay when its run resumes."""
    return [line for line in config.splitlines() if not line.startswith(_CHANGED_BY_RESUMING)]


def find_checkpoint_in(folder: Path) -> str | None:
    """Return the best checkpoint of a training's folder, which its last checkpoint names, or else
    the last; or the only checkpoint of another folder. It may be missing.

    Raises:
        ValueError: If the folder has several checkpoints, none of which is the last, or if the last
            cannot be read.
    """
    last = last_checkpoint(folder)
    if last:
        best = best_files(_read_last(folder)).values()
        return next((str(Path(last).with_name(name)) for name in best), last)
    files = [path for path in folder.iterdir() if path.name.endswith(CHECKPOINT_SUFFIXES)]
    files = [folder / name for name in _HUB_FILES if folder / name in files][:1] or files
    if len(files) > 1:
        names = preview(sorted(path.name for path in files))
        raise ValueError(f"{folder} has the checkpoints {names}: give config and checkpoint")
    return str(files[0]) if files else None


def _read_last(folder: Path) -> Any:
    """Return the content of the last checkpoint of a training's folder, None without its file."""
    last = last_checkpoint(folder)
    return load_from_file(last) if last and Path(last).is_file() else None


def best_files(checkpoint: Any) -> dict[str, str]:
    """Return the names of the files of the best checkpoints that a checkpoint of mmengine records,
    one for each metric, by their keys in `runtime_info`.
    """
    hub = checkpoint.get("message_hub") if isinstance(checkpoint, Mapping) else None
    info = (hub or {}).get("runtime_info") or {}
    return {key: Path(file).name for key, file in info.items() if key.startswith(BEST) and file}


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, which may be missing, or None if none was saved.

    The file of that name in the work folder counts, which may have been moved. The path that the
    run wrote counts on a server, or in a folder that is not a work folder.
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
