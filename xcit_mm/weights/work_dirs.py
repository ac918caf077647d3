"""The folder of a training: its config, its last checkpoint and the best one."""

from pathlib import Path
from typing import NamedTuple

from ..utils.errors import preview
from .reader import load_from_file

CHECKPOINT_SUFFIXES = (".pth", ".safetensors", ".bin", ".pt", ".pth.tar", ".ckpt")
# The weights of a repository of the Hub, which may have both and other files of these suffixes. The
# first in the alphabet is read.
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")

# Beginning of the keys under which mmengine's CheckpointHook stores the best checkpoint.
# The name of a metric follows if there are several.
_BEST = "best_ckpt"


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
    """Find the only config and the checkpoint of the model in a folder.

    In the folder of a training, the last checkpoint names the best one. Without a best one the last
    is taken. A named checkpoint may be missing from the disk. Another folder is a model if it has
    one checkpoint.
    """
    # Hidden files do not count: a kill may have left them unfinished.
    configs = sorted(map(str, folder.glob("[!.]*.py")))
    config = configs[0] if len(configs) == 1 else None
    last = last_checkpoint(folder)
    try:
        checkpoints = [_best_checkpoint(last)] if last else _list_checkpoints(folder)
    except ValueError as error:  # another checkpoint may be given in its place
        return Model(config, None, str(error))
    checkpoint = checkpoints[0] if len(checkpoints) == 1 else None
    if config and checkpoint:
        return Model(config, checkpoint)
    found = f"the configs {_names(configs)} and the checkpoints {_names(checkpoints)}"
    problem = f"{folder} must have one config and one checkpoint, but has {found}"
    return Model(config, checkpoint, f"{problem}: give config and checkpoint")


def _names(paths: list[str]) -> str:
    return preview([Path(path).name for path in paths]) or "none"


def _best_checkpoint(last: str) -> str:
    """Return the best checkpoint that the last one names, or else the last one.

    Of several metrics, the one counts that had a best checkpoint first.
    """
    if not Path(last).is_file():
        return last
    info = load_from_file(last).get("message_hub", {}).get("runtime_info", {})
    best = [file for key, file in info.items() if key.startswith(_BEST) and file]
    return str(Path(last).with_name(Path(best[0]).name)) if best else last


def _list_checkpoints(folder: Path) -> list[str]:
    """List the checkpoints in a folder. A repository of the Hub counts as one."""
    visible = folder.glob("[!.]*")
    files = sorted(path for path in visible if path.name.endswith(CHECKPOINT_SUFFIXES))
    of_hub = [path for path in files if path.name in _HUB_FILES]
    return list(map(str, of_hub[:1] or files))


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, or None. The file may be missing.

    Work folders may be moved, so a file with the recorded name in the folder is preferred. The
    recorded path is used for URLs and for checkpoints that were saved elsewhere.
    """
    pointer = work_dir / "last_checkpoint"
    saved = pointer.read_text("utf-8").strip() if pointer.is_file() else ""
    if saved:
        file = work_dir / Path(saved).name
        return str(file) if file.is_file() else saved
    # A kill came before the path was written.
    files = [*work_dir.glob("iter_*.pth"), *work_dir.glob("epoch_*.pth")]
    numbers = {int(path.stem.rpartition("_")[2]): str(path) for path in files}
    return numbers[max(numbers)] if numbers else None
