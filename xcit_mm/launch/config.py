"""The config of a fine-tuning, and the data that it names, which are written anew at a start."""

import sys
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..datasets import Dataset, Source, read_dataset, write_dataset
from ..models.build import has_pyramid
from ..utils.atomic import atomic_write
from ..utils.scripts import shipped_folder
from ..weights.classes import configured_classes
from .model import Adapted, difference
from .rasters import has_other_bands

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_BATCH_SIZE = 2
_LEARNING_RATE = 1e-4
_LAYER_DECAY = """constructor="LayerDecayOptimWrapperConstructor",  # lower nearer to the image
    paramwise_cfg=dict(layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0))),"""
_NO_LAYER_DECAY = "paramwise_cfg=dict(norm_decay_mult=0.0),"
_VALIDATION = """val_dataloader, val_evaluator = test_dataloader, test_evaluator
val_cfg = dict(_delete_=True, type="ValLoop")"""
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there are no held-out images"


def write_config(
    config: Path, adapted: Adapted, dataset: Dataset, source: Source, tiles: "Tiles | None" = None
) -> Path:
    """Write a config that trains an adapted model on a data set, on top of the model's. Return the
    folder beside it into which the objects are written.

    The schedule has 12 epochs, at least 1000 iterations.

    Args:
        source: What the data set was read from.
        tiles: The tiles that are the data set, if it was cut from a raster.

    Raises:
        ValueError: If a name has what mmengine replaces in a config.
    """
    folder = config.resolve().with_name(f"{config.stem}-coco")
    paths = {name: str(path) for name, path in vars(source).items() if path is not None}
    for name in (*paths.values(), str(folder), *dataset.classes):
        if "{{" in name:
            raise ValueError(f"{name!r} has {{{{, which mmengine replaces in a config: rename it")
    arguments = write_dataset(dataset, folder)
    raster = ""
    fill_stem = ""
    if tiles is not None:
        note = "how rasters are read: defaults of xcit-mm raster"
        raster = f"raster = {to_code(tiles.settings)}  # {note}\n"
        if has_other_bands(adapted.cfg, tiles):
            fill_stem = ", fill_stem=True"
    substitutes = dict(
        description=repr(dataset.describe())[1:-1],  # one line, whatever names it has
        source=to_code(paths | dict(folder=str(folder))),
        **_describe_model(adapted),
        **_describe_task(adapted, dataset.val is not None),
        training=to_code(arguments["train"]),
        held_out=to_code(arguments["val"]) if dataset.val else "training",
        classes=dataset.classes,
        iterations=max(1000, 12 * len(dataset.train.images) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        raster=raster,
        fill_stem=fill_stem,
    )
    template = shipped_folder("configs") / "_base_" / "finetuning.txt"
    with atomic_write(config) as file:
        file.write(Template(template.read_text()).substitute(substitutes).encode())
    return folder


def write_data_anew(cfg: Config) -> None:
    """Write the objects of a config of `train --from` as the user's files are now, so that
    corrected labels count. Other configs stay as they are.

    Raises:
        OSError: If a file is missing.
        ValueError: If the data cannot be read, or their classes have changed.
    """
    paths = {name: Path(path) for name, path in (cfg.get("source") or {}).items()}
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
    """Return the template's values of model, pipelines and learning rates, as Python code."""
    cfg = adapted.cfg
    checkpoint = adapted.checkpoint
    if checkpoint is not None and Path(checkpoint).is_file():
        checkpoint = str(Path(checkpoint).resolve())
    base = Path(adapted.base)
    shipped = base.as_posix().partition("/xcit_mm/.mim/configs/")[2]
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    optim_wrapper = cfg.get("optim_wrapper") or {}
    test_loader = {key: value for key, value in cfg.test_dataloader.items() if key != "dataset"}
    pipelines = ["".join(f"\n    {to_code(step)}," for step in part) for part in adapted.pipelines]
    return dict(
        model=repr(adapted.name)[1:-1],
        base=repr(f"xcit_mm::{shipped}" if shipped else str(base.resolve())),
        checkpoint=repr(checkpoint),
        imports=list(dict.fromkeys(["xcit_mm", *imports])),
        rate=_LEARNING_RATE if checkpoint else optim_wrapper["optimizer"]["lr"],
        rates=_LAYER_DECAY if checkpoint and has_pyramid(cfg) else _NO_LAYER_DECAY,
        clip_grad=to_code(optim_wrapper.get("clip_grad")),
        changes=to_code(difference(cfg.model.to_dict(), adapted.model)),
        train_pipeline=pipelines[0],
        test_pipeline=pipelines[1],
        test_loader=to_code(dict(_delete_=True) | test_loader),
    )


def _describe_task(adapted: Adapted, is_validated: bool) -> dict[str, str]:
    """Return the template's values of data sets and scores of the model's library, as code."""
    if adapted.is_detector:
        metric = ["bbox", "segm"] if adapted.masks else ["bbox"]
        options = f'ann_file=held_out["ann_file"], metric={metric}, classwise=True'
        evaluator = f'type="CocoMetric", {options}'
        best = f"coco/{metric[-1]}_mAP"
    else:
        evaluator = 'type="IoUMetric", iou_metrics=["mIoU"]'
        best = "mIoU"
    return dict(
        dataset_type="CocoDataset" if adapted.is_detector else "BaseSegDataset",
        evaluator=evaluator,
        best=repr(best if is_validated else None),
        validation=_VALIDATION if is_validated else _NO_VALIDATION,
    )


def to_code(value: Any) -> str:
    """Return the Python of a value, with dicts as dict(type=..., key=value), as people write
    configs.
    """
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key != "type")  # which comes first
        if not all(isinstance(key, str) and key.isidentifier() for key in keys):
            return f"{{{', '.join(f'{key!r}: {to_code(value[key])}' for key in keys)}}}"
        return f"dict({', '.join(f'{key}={to_code(value[key])}' for key in keys)})"
    if isinstance(value, list):
        return f"[{', '.join(map(to_code, value))}]"
    return repr(value.__name__ if isinstance(value, type) else value)
