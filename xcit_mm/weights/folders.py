"""A folder as a model: the work folder of a training, wherever it lies, or a download from the Hugging Face Hub."""

import ast
from pathlib import Path

from ..utils.errors import preview, reason

HUB_PREFIX = "hf://"
CHECKPOINT_SUFFIXES = (".pth", ".safetensors")


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, or None.

    The run wrote its path, but the folder may have been moved or copied since. The file of that name in the folder
    itself is taken, unless the run saved it in a folder that is no work folder, or on a server.
    """
    pointer = work_dir / "last_checkpoint"
    if not pointer.is_file():
        return None
    saved = pointer.read_text().strip()
    own, original = work_dir / Path(saved).name, Path(saved)
    elsewhere = "://" in saved or (original.is_file() and not (original.parent / pointer.name).exists())
    return saved if elsewhere and not own.is_file() else str(own)


def find_config_in(folder: Path) -> str:
    """Return the only config of a folder.

    Raises:
        FileNotFoundError: If the folder has none or several.
    """
    configs = sorted(folder.glob("*.py"))
    if len(configs) != 1:
        found = ", ".join(path.name for path in configs) or "none"
        raise FileNotFoundError(f"{folder} must have one config, but has {found}: give config and checkpoint")
    return str(configs[0])


def find_checkpoint_in(folder: Path) -> str | None:
    """Return the best checkpoint of a training's folder, or its last; or the only checkpoint of another folder.

    Raises:
        ValueError: If the folder has several checkpoints, none of which is the best or the last.
    """
    best = max(folder.glob("best_*.pth"), key=lambda path: path.stat().st_mtime, default=None)
    chosen = str(best) if best else last_checkpoint(folder)
    files = [] if chosen else sorted(path for suffix in CHECKPOINT_SUFFIXES for path in folder.glob(f"*{suffix}"))
    if len(files) > 1:
        names = preview([path.name for path in files])
        raise ValueError(f"{folder} has the checkpoints {names}: give one, or name the best best_*.pth")
    return chosen or (str(files[0]) if files else None)


def download_model(name: str) -> Path:
    """Return the folder of a model of the Hugging Face Hub, after a download if necessary.

    Args:
        name: `hf://OWNER/NAME`.

    Raises:
        ModuleNotFoundError: If huggingface_hub is not installed.
        ConnectionError: If the Hub has no such model or cannot be reached.
        ValueError: If its config is a program.
    """
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name} needs huggingface_hub: pip install huggingface_hub") from None
    try:
        folder = Path(snapshot_download(name.removeprefix(HUB_PREFIX)))
    except Exception as error:  # the Hub's client and its libraries raise many types
        raise ConnectionError(f"cannot download {name} ({reason(error)[:300]}): check the name") from error
    _check_values(Path(find_config_in(folder)))
    return folder


# What assignments of plain values consist of, `dict(key=value)` included.
_VALUES = (ast.Module, ast.Assign, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Call, ast.keyword)
_NAMES_AND_SIGNS = (ast.Name, ast.Load, ast.Store, ast.UnaryOp, ast.USub)


def _check_values(config: Path) -> None:
    """Raise ValueError unless a config only assigns plain values. mmengine runs it, and its author may be anyone."""
    text = config.read_text()
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{config} is not a config: {reason(error)}") from None
    for node in nodes:
        plain = isinstance(node, (*_VALUES, *_NAMES_AND_SIGNS))
        if isinstance(node, ast.Name):  # `dict` is the only name that is read, and means Python's
            plain = (node.id == "dict") == isinstance(node.ctx, ast.Load) and node.id != "_base_"
        if not plain or "{{" in text:  # in which mmengine replaces text before it runs the config
            raise ValueError(f"{config} is not loaded, because it may run code: it must assign plain values only")
