"""Reading of configs, and the folder of the configs that the package ships."""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from .compat import find_bases_by_package
from .errors import ArgumentError, reason
from .output import say

# Keys that runners, the libraries' scripts and this package read in a config.
_READ_KEYS = {
    *inspect.signature(Runner.__init__).parameters,
    *("activation_checkpointing", "compile", "custom_imports", "efficient_conv_bn_eval"),
    *("find_unused_parameters", "init_weights_for_test_or_val", "model_wrapper_cfg", "raster"),
    *("runner_type", "source", "strategy", "sync_bn", "tta_model", "tta_pipeline"),
}


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `tools` that the package ships beside its modules.

    It is in .mim of an installed package, or beside the package in a clone.
    """
    package = Path(__file__).parents[1]
    folders = (package / ".mim" / name, package.parent / name)
    return next(filter(Path.is_dir, folders))


def read_config(config: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config. Its bases may be `PACKAGE::CONFIG` from this package, mmdet and mmseg.

    Args:
        options: Values by dotted key, such as `{"model.backbone.arch": "t12"}`, that replace those
            in the config. A message names each new key.

    Raises:
        ArgumentError: If no part of a run has the name of an option.
        FileNotFoundError: If there is no such config.
        ValueError: If the config or one of its bases cannot be read, or if it has no model.
    """
    path = Path(config).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no config at {config}: check the path")
    try:
        with find_bases_by_package():
            cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program
        raise ValueError(f"{config} cannot be read: {reason(error)}") from None
    if not cfg.get("model"):
        raise ValueError(f"{config} has no model: give the config of a whole run")
    # A run writes its config as a text, which may hold no `Path`.
    values = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in (options or {}).items()
    }
    check_keys(values)
    for key in values:
        if "." in key and not key.endswith("._delete_") and not _has_key(cfg, key):
            say(f"new key in the config: {key}")
    if values:
        cfg.merge_from_dict(values)
    return cfg


def check_keys(options: Iterable[str]) -> None:
    """Raise ArgumentError if no part of a run has the first name of an option, a dotted key."""
    for key in options:
        # It is mistyped, or it is a variable whose value other parts of the config have copied.
        if key.partition(".")[0] not in _READ_KEYS:
            fix = "give a whole key, such as train_cfg.max_iters"
            raise ArgumentError("cfg_options", f"a config has no setting {key}: {fix}")


def _has_key(cfg: Config, key: str) -> bool:
    value: Any = cfg
    try:
        for name in key.split("."):
            value = value[int(name) if name.isdigit() else name]
    except (KeyError, IndexError, TypeError):
        return False
    return True
