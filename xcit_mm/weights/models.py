"""Models by name: config and weights of a published model, or of the folder of a training run."""

import argparse
import difflib
import functools
import sys
from pathlib import Path
from typing import NamedTuple

from mmengine.fileio import load

from ..utils.configs import SUFFIXES
from ..utils.scripts import shipped_folder
from .hub import HUB_PREFIX, WEIGHTS, download_model
from .published import PUBLISHED


class Model(NamedTuple):
    """Files of a trained model: the path of the config; a path, a URL or `xcit://NAME` of the checkpoint."""

    config: str
    checkpoint: str


@functools.cache
def shipped_models() -> dict[str, tuple[str, str | None]]:
    """Return config and weights, if published, of the shipped models, by the names of both."""
    configs = shipped_folder("configs")
    names = {url: name for name, url in PUBLISHED.items()}
    models: dict[str, tuple[str, str | None]] = {}
    for metafile in sorted(configs.glob("*/metafile.yml")):
        for entry in load(metafile)["Models"]:
            weights = names.get(entry.get("Weights"))
            model = (str(configs.parent / entry["Config"]), weights and f"xcit://{weights}")
            models[entry["Name"]] = model
            if weights:
                models[weights] = model
    return models


def last_checkpoint(work_dir: Path) -> str | None:
    """Return the checkpoint that a run saved last, or None."""
    pointer = work_dir / "last_checkpoint"
    return pointer.read_text().strip() if pointer.is_file() else None


def add_model_arguments(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add the arguments `config` and `checkpoint`, which `find_model` takes. The note ends the help of `checkpoint`."""
    parser.add_argument("config", metavar="MODEL", help="a model's name, a work folder or a config")
    default = f"(default: the model's own){note}"
    parser.add_argument("checkpoint", nargs="?", help=f"a path, a URL or xcit://NAME {default}")


def find_config(model: str) -> str:
    """Return the path of a config.

    Args:
        model: The path itself, the name of a shipped config or of published weights, the folder of a training run or of
            `write_model`, or `hf://OWNER/NAME` on the Hugging Face Hub.

    Raises:
        ValueError: If the name is unknown. The message names the most similar ones.
        FileNotFoundError: If the folder has no config.
    """
    return model if model.endswith(SUFFIXES) else _lookup(model)[0]


def find_model(model: str, checkpoint: str | None = None) -> Model:
    """Return config and checkpoint of a model. What a name or folder stands for is reported on stderr.

    Args:
        model: As in `find_config`. A folder's checkpoint is the best of the run, or else the last.
        checkpoint: Replaces the checkpoint of a name or folder. The path of a config requires it.

    Raises:
        ValueError: If the name is unknown or the model has no checkpoint.
        FileNotFoundError: If the folder has no config.
    """
    named = not model.endswith(SUFFIXES)
    config, own = _lookup(model) if named else (model, None)
    checkpoint = checkpoint or own
    if checkpoint is None:
        raise ValueError(f"{model} has no checkpoint: give one after it, or the name of published weights")
    if named:
        print(f"{model}: {config} with {checkpoint}", file=sys.stderr)
    return Model(config, checkpoint)


def _lookup(model: str) -> tuple[str, str | None]:
    if model.startswith(HUB_PREFIX):
        return _trained(download_model(model))
    if Path(model).is_dir():
        return _trained(Path(model))
    models = shipped_models()
    name = model.removeprefix("xcit://")
    if Path(model).suffix:
        raise ValueError(f"{model} is not a config (*.py): the config comes before the checkpoint")
    if name not in models:
        similar = difflib.get_close_matches(name, models, n=3, cutoff=0.5) or ["the names of `xcit-mm weights list`"]
        fix = f"try {', '.join(similar)}"
        raise ValueError(f"{model} is neither a config (*.py) nor a model's name nor a work folder: {fix}")
    return models[name]


def _trained(folder: Path) -> tuple[str, str | None]:
    """Return config and checkpoint of a folder that mmengine's training or `write_model` has written."""
    configs = sorted(folder.glob("*.py"))
    if len(configs) != 1:
        found = ", ".join(path.name for path in configs) or "none"
        raise FileNotFoundError(f"{folder} must have one config, but has {found}: give config and checkpoint")
    best = max(folder.glob("best_*.pth"), key=lambda path: path.stat().st_mtime, default=None)
    weights = folder / WEIGHTS
    checkpoint = str(best) if best else last_checkpoint(folder)
    return str(configs[0]), checkpoint or (str(weights) if weights.is_file() else None)
