"""Which config and checkpoint a model's name means: the only place that resolves names."""

import functools
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmengine.fileio import load
from mmengine.runner import CheckpointLoader

from ..utils.configs import shipped_folder
from ..utils.errors import ArgumentError
from ..utils.output import say
from .published import (
    PUBLISHED,
    PUBLISHED_ROOT,
    REMOTE_PREFIXES,
    ensure_downloaded,
    published_name,
)
from .reader import load_from_file
from .work_dirs import CHECKPOINT_SUFFIXES, Model, find_in

HUB_PREFIX = "hf://"
_NO_CHECKPOINT = "has no checkpoint: give one, or a work folder or published weights in its place"


def lookup(name: str | Path) -> Model:
    """Find config and checkpoint of a model by its name. A part that it does not have is None.

    Args:
        name: One of the following. The first that fits counts.

            - The path of a config, `*.py`.
            - `hf://OWNER/NAME`, weights on the Hugging Face Hub, which are downloaded. A config
              there is left out, because it could run code.
            - A folder with config and weights, such as that of a training.
            - The name of a shipped config or of published weights, with or without `xcit://`.
            - The path or URL of weights alone.

    Raises:
        ValueError: If the name is unknown, with similar names.
        ModuleNotFoundError: If huggingface_hub, the extra `hub`, is not installed.
        OSError: If the Hub has no such model or cannot be reached.
    """
    name = os.path.expanduser(name)
    if not name:
        raise ValueError("the name of a model is empty: give one, or a path")
    if name.endswith(".py"):
        return Model(name, None, f"{name} {_NO_CHECKPOINT}")
    if name.startswith(HUB_PREFIX):
        found = find_in(_download_from_hub(name))
        return Model(None, found.checkpoint, found.problem)
    if Path(name).is_dir():
        return find_in(Path(name))
    models = _shipped_models()
    known_name = published_name(name)
    if known_name in models:
        return models[known_name]
    if known_name in PUBLISHED:
        fix = "give it to the init_cfg of a backbone"
        return Model(None, f"xcit://{known_name}", f"{name} is a trunk without heads: {fix}")
    is_path = name.endswith(CHECKPOINT_SUFFIXES) or Path(name).is_file()
    if name.startswith(("http://", "https://")) or (is_path and "://" not in name):
        fix = "give its work folder, or a config and this as its checkpoint"
        return Model(None, name, f"{name} is a file without a config: {fix}")
    similar = ", ".join(get_close_matches(known_name.lower(), {**models, **PUBLISHED}))
    problem = f"{name} is neither a config (*.py), a model's name, a work folder nor a file"
    raise ValueError(f"{problem}: try {similar or 'the names of `xcit-mm weights list`'}")


@functools.cache
def _shipped_models() -> dict[str, Model]:
    """Return the shipped models by the names of their configs and of their published weights."""
    configs = shipped_folder("configs")
    names = {file.url: name for name, file in PUBLISHED.items()}
    models: dict[str, Model] = {}
    for metafile in sorted(configs.glob("*/metafile.yml")):
        for entry in load(metafile)["Models"]:
            config = str(configs.parent / entry["Config"])
            name = entry["Name"]
            weights = names.get(entry.get("Weights"))
            if weights:
                models[weights] = models[name] = Model(config, f"xcit://{weights}")
            else:
                models[name] = Model(config, None, f"{name} {_NO_CHECKPOINT}")
    return models


def _download_from_hub(name: str) -> Path:
    """Return the local folder of `hf://OWNER/NAME`, after a download if necessary."""
    from huggingface_hub import snapshot_download

    repository = name.removeprefix(HUB_PREFIX)
    # Repositories of timm have the same weights as model.safetensors and pytorch_model.bin.
    folder = Path(snapshot_download(repository, ignore_patterns="*.bin"))
    if any(path.name.endswith(CHECKPOINT_SUFFIXES) for path in folder.iterdir()):
        return folder
    return Path(snapshot_download(repository))


def find_config(model: str | Path) -> str:
    """Return the path of a model's config.

    Args:
        model: As in `lookup`.

    Raises:
        ValueError: If the model is unknown, has no config, or is on the Hugging Face Hub.
    """
    config, _ = _find(model)
    return config


def _find(model: str | Path) -> tuple[str, Model]:
    """Return the path of a model's config, and what `lookup` finds, or raise as `find_config`."""
    name = str(model)
    if name.startswith(HUB_PREFIX):
        command = f"hf download {name.removeprefix(HUB_PREFIX)} --local-dir FOLDER"
        fix = f"download it by `{command}`, read it, and give FOLDER"
        raise ValueError(f"the config of {name} may run code: {fix}")
    found = lookup(name)
    if found.config is None:
        raise ValueError(found.problem)
    return found.config, found


def find_model(model: str | Path, checkpoint: str | Path | None = None) -> tuple[str, str]:
    """Return the path of a model's config, and the path, URL or `xcit://NAME` of its checkpoint.

    A message says which files a name or folder stands for.

    Args:
        model: As in `find_config`.
        checkpoint: A file, a URL, `xcit://NAME` or `hf://OWNER/NAME`, in place of the model's own
            checkpoint. The path of a config requires it.

    Raises:
        ArgumentError: If the model has no checkpoint, or `checkpoint` is a folder.
        ValueError: As in `find_config`.
    """
    config, found = _find(model)
    weights = os.path.expanduser(checkpoint or found.checkpoint or "")
    if not weights:
        raise ArgumentError("checkpoint", found.problem)
    if os.path.isdir(weights):
        raise ArgumentError("checkpoint", f"{weights} is a folder: give a file")
    if config != str(model):
        say(f"{model}: {config} with {weights}")
    return config, weights


# mmengine logs a loader by its function's name less "load_from_".
@CheckpointLoader.register_scheme(
    prefixes=["xcit://", HUB_PREFIX, PUBLISHED_ROOT, r"(?!.*://).*\.safetensors$"]
)
def load_from_xcit(filename: str, map_location: Any = "cpu") -> Any:
    """Read published files, models of the Hub and safetensors for mmengine."""
    return load_checkpoint(filename, map_location)


def load_checkpoint(name: str | Path, map_location: Any = "cpu") -> Any:
    """Read the checkpoint of a model as `load_from_file` does, after a download if necessary.

    Args:
        name: As in `lookup`.

    Raises:
        FileNotFoundError: If there is no such file, or if a folder has no checkpoint or several.
        OSError: If the file cannot be downloaded.
        ModuleNotFoundError: If the client of the Hub is not installed.
        ValueError: If the name is unknown, or the file cannot be read.
    """
    found = lookup(name)
    if found.checkpoint is None:
        raise FileNotFoundError(found.problem)
    if found.checkpoint.startswith(REMOTE_PREFIXES):
        return load_from_file(ensure_downloaded(found.checkpoint), map_location)
    return load_from_file(found.checkpoint, map_location)
