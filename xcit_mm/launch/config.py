"""The config of a fine-tuning, and the data that it names, which are written anew at a start."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..datasets import Dataset, Source, read_dataset, write_dataset
from ..models.build import has_pyramid
from ..utils.atomic import atomic_write
from ..utils.scripts import shipped_folder
from ..weights.classes import configured_classes
from .model import Adapted
from .rasters import has_other_bands

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_BATCH_SIZE = 2


def write_config(
    config: Path, adapted: Adapted, dataset: Dataset, source: Source, tiles: "Tiles | None" = None
) -> Path:
    """Write a config that trains an adapted model on a data set, read from a source or cut into
    tiles, for 12 epochs, at least 1000 iterations. Return the folder of its objects, beside it.
    """
    folder = config.resolve().with_name(f"{config.stem}-coco")
    arguments = write_dataset(dataset, folder)
    # With all keys, since mmengine keeps those of the base.
    paths = {name: path and str(path) for name, path in vars(source).items()}
    values = dict(
        source=paths | dict(folder=str(folder)),
        training=arguments["train"],
        held_out=arguments.get("val", arguments["train"]),
        is_validated=dataset.val is not None,
        classes=dataset.classes,
        max_iters=max(1000, 12 * len(dataset.train.images) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        fill_stem=tiles is not None and has_other_bands(adapted.cfg, tiles),
        **_describe_model(adapted),
    )
    if tiles is not None:
        values["raster"] = tiles.settings
    description = repr(dataset.describe())[1:-1]  # one line, whatever names it has
    base = Path(adapted.base).resolve().as_posix()
    shipped = base.partition("/xcit_mm/.mim/configs/")[2]
    if shipped:
        base = f"xcit_mm::{shipped}"
    header = (
        f"# Fine-tunes {adapted.name}. Written by `train --from`: edit and keep it.\n"
        f"# {description}\n"
        f"_base_ = {base!r}\n"
    )
    same_in_all = (shipped_folder("configs") / "_base_" / "finetuning.txt").read_text("utf-8")
    with atomic_write(config) as file:
        file.write(f"{header}{Config(values).pretty_text}{same_in_all}".encode())
    return folder


def write_data_anew(cfg: Config) -> None:
    """Write the objects of a config of `train --from` as the user's files are now, so that
    corrected labels count. Raise as `read_dataset`, and ValueError if classes have changed.
    """
    paths = {name: Path(path) for name, path in (cfg.get("source") or {}).items() if path}
    folder = paths.pop("folder", None)
    if folder is None:
        return
    classes = configured_classes(cfg, "train") or ()
    dataset = read_dataset(Source(**paths), cfg.default_scope == "mmdet", classes)
    if dataset.classes != classes:
        problem = f"{paths['data']} has the classes {dataset.classes}, the config {classes}"
        raise ValueError(f"{problem}: write another config by --from")
    write_dataset(dataset, folder)
    print(dataset.describe(), file=sys.stderr)


def _describe_model(adapted: Adapted) -> dict[str, Any]:
    """Return the values of a config that a model determines."""
    cfg = adapted.cfg
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    optim_wrapper = cfg.get("optim_wrapper") or {}
    train_pipeline, test_pipeline = adapted.pipelines
    metric = None  # of maps
    if adapted.is_detector:
        metric = ["bbox", "segm"] if adapted.masks else ["bbox"]
    rate = 1e-4
    constructor = "DefaultOptimWrapperConstructor"
    if adapted.checkpoint is None:
        rate = optim_wrapper["optimizer"]["lr"]
    elif has_pyramid(cfg):  # lower rates nearer to the image
        constructor = "LayerDecayOptimWrapperConstructor"
    return dict(
        load_from=adapted.checkpoint,
        custom_imports=dict(imports=list(dict.fromkeys(["xcit_mm", *imports]))),
        learning_rate=rate,
        constructor=constructor,
        clip_grad=optim_wrapper.get("clip_grad"),
        metric=metric,
        model=_difference(cfg.model.to_dict(), adapted.model),
        train_pipeline=train_pipeline,
        test_pipeline=test_pipeline,
    )


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config that differ from those of its base."""
    changes = {}
    for key, value in new.items():
        old_value = old.get(key)
        if isinstance(value, dict) and isinstance(old_value, dict):
            inner = _difference(old_value, value)
            if inner:
                changes[key] = inner
        elif key not in old or value != old_value:
            changes[key] = value
    return changes
