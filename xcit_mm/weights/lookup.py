"""Models by name: published files, shipped configs, work folders, models of the Hub."""

import functools
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.fileio import load
from mmengine.runner import CheckpointLoader

from ..utils.errors import ArgumentError, reason
from ..utils.output import say
from ..utils.shipped import shipped_folder
from .published import (
    PUBLISHED,
    PUBLISHED_ROOT,
    REMOTE_PREFIXES,
    ensure_downloaded,
    published_name,
)
from .reader import check_checkpoint, load_from_file
from .work_dirs import CHECKPOINT_SUFFIXES, find_checkpoint_in, find_config_in

HUB_PREFIX = "hf://"


@functools.cache
def shipped_models() -> dict[str, tuple[str, str | None]]:
    """Return config and published weights, or None, of each shipped model, by the names of both."""
    configs = shipped_folder("configs")
    names = {file.url: name for name, file in PUBLISHED.items()}
    models: dict[str, tuple[str, str | None]] = {}
    for metafile in sorted(configs.glob("*/metafile.yml")):
        for entry in load(metafile)["Models"]:
            config = str(configs.parent / entry["Config"])
            weights = names.get(entry.get("Weights"))
            models[entry["Name"]] = config, weights and f"xcit://{weights}"
            if weights:
                models[weights] = models[entry["Name"]]
    return models


def find_config(model: str | Path) -> str:
    """Return the path of a model's config.

    Args:
        model: The config itself, the name of a shipped config or of published weights, the folder
            of a training or another one with config and weights, or a checkpoint in such a folder.

    Raises:
        ValueError: If the name is unknown, with similar names, or on the Hugging Face Hub.
        FileNotFoundError: If the folder has no config.
    """
    return _look_up_model(str(model))[0]


def find_model(model: str | Path, checkpoint: str | Path | None = None) -> tuple[str, str]:
    """Return the path of a model's config, and the path, URL or `xcit://NAME` of its checkpoint.

    A line says what a name or folder stands for.

    Args:
        model: As in `find_config`.
        checkpoint: Replaces that of the model. The path of a config requires it.

    Raises:
        ArgumentError: If the model has no checkpoint.
        ValueError: As `find_config`.
    """
    model = str(model)
    if checkpoint and model.endswith(CHECKPOINT_SUFFIXES):
        problem = f"{model} is a checkpoint, not a config (*.py): the config comes first"
        raise ArgumentError("model", problem)
    config, own = _look_up_model(model, find_weights=checkpoint is None)
    checkpoint = checkpoint or own
    if checkpoint is None:
        fix = "give one, or the name of published weights in place of the config"
        raise ArgumentError("checkpoint", f"{model} has none: {fix}")
    if config != model:
        say(f"{model}: {config} with {checkpoint}")
    return config, str(checkpoint)


def _look_up_model(model: str, find_weights: bool = False) -> tuple[str, str | None]:
    """Return a model's config and its checkpoint or None, in a folder only if `find_weights`."""
    if model.endswith(".py"):
        return model, None
    if model.startswith(HUB_PREFIX):
        command = f"hf download {model.removeprefix(HUB_PREFIX)} --local-dir FOLDER"
        raise ValueError(f"{model}: a config may run code: `{command}`, read it, and give FOLDER")
    folder = find_folder(model)
    if folder:
        return find_config_in(folder), find_checkpoint_in(folder) if find_weights else None
    if model.endswith(CHECKPOINT_SUFFIXES):
        check_checkpoint(model)
        return find_config_in(Path(model).expanduser().parent), model
    models = shipped_models()
    name = published_name(model)
    if name in models:
        return models[name]
    if name in PUBLISHED:
        raise ValueError(f"{model} is a trunk without heads: give it to a backbone's init_cfg")
    similar = ", ".join(get_close_matches(name.lower(), {**models, **PUBLISHED}))
    problem = f"{model} is neither a config (*.py) nor a model's name nor a work folder"
    raise ValueError(f"{problem}: try {similar or 'the names of `xcit-mm weights list`'}")


def find_folder(name: str) -> Path | None:
    """Return a local folder, or that of `hf://OWNER/NAME`, after a download if necessary, or None
    for other names.

    Raises:
        ConnectionError: If the Hub has no such model or cannot be reached.
    """
    if not name.startswith(HUB_PREFIX):
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    if find_spec("huggingface_hub") is None:
        raise ModuleNotFoundError(f"{name} needs huggingface_hub: pip install xcit_mm[hub]")
    from huggingface_hub import snapshot_download

    repository = name.removeprefix(HUB_PREFIX)
    try:
        # Repositories of timm have the same weights as model.safetensors and pytorch_model.bin.
        folder = Path(snapshot_download(repository, ignore_patterns="*.bin"))
        if not any(path.name.endswith(CHECKPOINT_SUFFIXES) for path in folder.iterdir()):
            folder = Path(snapshot_download(repository))
        return folder
    except Exception as error:  # the Hub's client and its libraries raise many types
        problem = f"cannot download {name} ({reason(error)[:300]})"
        raise ConnectionError(f"{problem}: check the name") from error


def find_weights(name: str) -> str | None:
    """Return the file of weights for which a path, URL, `hf://OWNER/NAME` or folder without a
    config stands, or None for a model.
    """
    if name.endswith(CHECKPOINT_SUFFIXES) or name.startswith(REMOTE_PREFIXES):
        return name
    folder = find_folder(name)
    if folder and (name.startswith(HUB_PREFIX) or not any(folder.glob("*.py"))):
        return find_checkpoint_in(folder)
    return None


# mmengine logs a loader by its function's name less "load_from_".
@CheckpointLoader.register_scheme(
    prefixes=["xcit://", HUB_PREFIX, PUBLISHED_ROOT, r"(?!.*://).*\.safetensors$"]
)
def load_from_xcit(filename: str, map_location: Any = "cpu") -> Any:
    """Read published files, models of the Hub and safetensors for mmengine."""
    return load_checkpoint(filename, map_location)


def load_checkpoint(name: str | Path, map_location: Any = "cpu") -> Any:
    """Read a checkpoint as `load_from_file`, after a download if necessary.

    Args:
        name: A path, a URL, a published name with or without `xcit://`, or `hf://OWNER/NAME` or a
            folder, which have that of `find_checkpoint_in`.

    Raises:
        FileNotFoundError: If there is no such file.
        ConnectionError: If the file cannot be downloaded.
    """
    name = str(name)
    folder = find_folder(name)
    if folder:
        name = find_checkpoint_in(folder) or f"{name}/*.pth"  # which an error will name
    if name.startswith(REMOTE_PREFIXES) or published_name(name) in PUBLISHED:
        return load_from_file(ensure_downloaded(name), map_location)
    return load_from_file(name, map_location)
