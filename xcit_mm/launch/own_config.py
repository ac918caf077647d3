"""The config of a fine-tuning, and the objects that each start writes again."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..datasets import Dataset, Source, read_dataset, write_dataset
from ..models.build import has_pyramid
from ..utils.atomic import atomic_write
from ..utils.configs import shipped_folder
from ..utils.output import say
from ..weights.class_names import configured_classes

_BATCH_SIZE = 2
_END_OF_VALUES = "# The same in every config that `finetune` writes.\n"


def write_config(
    config: Path,
    cfg: Config,
    dataset: Dataset,
    arguments: dict[str, dict[str, Any]],
    values: dict[str, Any],
) -> None:
    """Write the config of a fine-tuning of 12 epochs, at least 1000 iterations.

    Args:
        cfg: The model's own config, with its checkpoint as `load_from`.
        arguments: The arguments with which mmdet or mmseg reads 'train' and 'val'.
        values: What `adapt` returns, `large`, the user's files as `source`, for a labelled raster
            `raster`, and if it is not 2 the `batch_size`.
    """
    optim_wrapper = cfg.get("optim_wrapper") or {}
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    batch_size = values.get("batch_size", _BATCH_SIZE)
    rate = 1e-4 if cfg.load_from else optim_wrapper["optimizer"]["lr"]
    constructor = "DefaultOptimWrapperConstructor"
    if cfg.load_from and has_pyramid(cfg):  # lower rates nearer to the image
        constructor = "LayerDecayOptimWrapperConstructor"
    values = values | dict(
        training=arguments["train"],
        held_out=arguments.get("val", arguments["train"]),
        is_validated=dataset.val is not None,
        classes=dataset.classes,
        max_iters=max(1000, 12 * len(dataset.train.images) // batch_size),
        batch_size=batch_size,
        load_from=cfg.load_from,
        custom_imports=dict(imports=list(dict.fromkeys(["xcit_mm", *imports]))),
        learning_rate=rate,
        constructor=constructor,
        clip_grad=optim_wrapper.get("clip_grad"),
        model=_difference(cfg.model.to_dict(), values["model"]),
    )
    base = Path(cfg.filename).resolve().as_posix()
    shipped = base.partition("/xcit_mm/.mim/configs/")[2]
    header = (
        f"# Fine-tunes {cfg.load_from or base}. `finetune` wrote it: edit and keep it.\n"
        f"_base_ = {f'xcit_mm::{shipped}' if shipped else base!r}\n"
    )
    template = (shipped_folder("configs") / "_base_" / "finetuning.py").read_text("utf-8")
    same_in_all = template.partition(_END_OF_VALUES)[2]
    with atomic_write(config) as file:
        text = f"{header}{Config(values).pretty_text}\n{_END_OF_VALUES}{same_in_all}"
        file.write(text.encode())


def write_data_anew(cfg: Config) -> None:
    """Write the objects of a fine-tuning again, from the user's files as they are now.

    So corrected labels count. Configs that `finetune` did not write are left alone.

    Raises:
        ValueError: If the classes have changed, and as in `read_dataset`.
    """
    paths = {name: Path(path) for name, path in (cfg.get("source") or {}).items() if path}
    folder = paths.pop("folder", None)
    if folder is None:  # tiles are cut again by another fine-tuning
        return
    classes = configured_classes(cfg, "train") or ()
    dataset = read_dataset(Source(**paths), cfg.default_scope == "mmdet", classes)
    if dataset.classes != classes:
        problem = f"{paths['data']} has the classes {dataset.classes}, the config {classes}"
        raise ValueError(f"{problem}: fine-tune a model into another config")
    write_dataset(dataset, folder)
    say(dataset.describe())


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config that differ from those of its base."""
    changes = {}
    for key, value in new.items():
        old_value = old.get(key)
        if isinstance(value, dict) and isinstance(old_value, dict):
            value = _difference(old_value, value)
            if value:
                changes[key] = value
        elif key not in old or value != old_value:
            changes[key] = value
    return changes
