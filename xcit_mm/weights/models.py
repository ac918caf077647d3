"""Models by name: config and weights of a published model, or of the folder of a training run."""

import argparse
import difflib
import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mmengine.fileio import load

from ..utils.configs import SUFFIXES
from ..utils.scripts import shipped_folder
from .folders import CHECKPOINT_SUFFIXES, HUB_PREFIX, download_model, find_checkpoint_in, find_config_in
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


def add_model_arguments(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add the arguments `config` and `checkpoint`, which `find_model` takes. The note ends the help of `checkpoint`."""
    parser.add_argument("config", metavar="MODEL", help="a model's name, a work folder, a checkpoint or a config")
    default = f"(default: the model's own){note}"
    parser.add_argument("checkpoint", nargs="?", help=f"a path, a URL or xcit://NAME {default}")


def find_config(model: str) -> str:
    """Return the path of a config.

    Args:
        model: The path itself, the name of a shipped config or of published weights, a folder with config and weights
            such as that of a training run, a checkpoint in such a folder, or `hf://OWNER/NAME` on the Hugging Face Hub.

    Raises:
        ValueError: If the name is unknown. The message names all similar ones.
        FileNotFoundError: If the folder has no config.
    """
    return model if model.endswith(SUFFIXES) else _lookup(model)[0]


def find_model(model: str, checkpoint: str | None = None) -> Model:
    """Return config and checkpoint of a model. What a name or folder stands for is reported on stderr.

    Args:
        model: As in `find_config`. A folder's checkpoint is the best of the run, or else the last, or the only one.
        checkpoint: Replaces the checkpoint of a name or folder. The path of a config requires it.

    Raises:
        ValueError: If the name is unknown or the model has no checkpoint.
        FileNotFoundError: If the folder has no config.
    """
    if checkpoint and model.endswith(CHECKPOINT_SUFFIXES):
        raise ValueError(f"{model} is not a config (*.py): the config comes before the checkpoint")
    named = not model.endswith(SUFFIXES)
    config, own = _lookup(model, find_weights=checkpoint is None) if named else (model, None)
    checkpoint = checkpoint or own
    if checkpoint is None:
        raise ValueError(f"{model} has no checkpoint: give one after it, or the name of published weights")
    if named:
        print(f"{model}: {config} with {checkpoint}", file=sys.stderr)
    return Model(config, checkpoint)


def _lookup(model: str, find_weights: bool = False) -> tuple[str, str | None]:
    path = Path(model)
    if model.startswith(HUB_PREFIX):
        path = download_model(model)
    if path.is_dir():
        return find_config_in(path), find_checkpoint_in(path) if find_weights else None
    if model.endswith(CHECKPOINT_SUFFIXES):
        if not path.is_file():
            raise FileNotFoundError(f"no checkpoint at {model}: check the path, or give the name of a model")
        return find_config_in(path.parent), model
    models, name = shipped_models(), model.removeprefix("xcit://")
    if name not in models:
        fix = f"try {', '.join(similar_names(name, models)) or 'the names of `xcit-mm weights list`'}"
        raise ValueError(f"{model} is neither a config (*.py) nor a model's name nor a work folder: {fix}")
    return models[name]


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """List all names with the words of a name, or else those that begin nearly as it does.

    A config and its weights count once, by the name that is more similar.
    """

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, name.lower(), other[: len(name) + 1]).ratio()

    words = re.split("[-_ ]", name.lower())
    found = [each for each in names if all(word in each for word in words)]
    found = found or [each for each in names if likeness(each) > 0.8]
    models, chosen = shipped_models(), dict[str, str]()
    for each in found:
        config = models.get(each, (each,))[0]
        chosen[config] = max(each, chosen.get(config, each), key=likeness)
    return list(chosen.values())
