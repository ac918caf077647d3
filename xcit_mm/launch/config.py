"""The config of a fine-tuning, written from an adapted model and a data set."""

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..datasets.old_dataset import Dataset
from ..datasets.old_writing import write_dataset
from ..models.build import has_pyramid
from ..utils.atomic import atomic_write
from ..utils.scripts import shipped_folder
from ..utils.texts import printable
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


def name_of(data: Path) -> str:
    """Return the name of a data set, a file or a folder."""
    return data.stem if data.is_file() else data.name


def write_finetuning_config(
    config: Path, adapted: Adapted, data: Dataset, source: Path, tiles: "Tiles | None" = None
) -> str:
    """Write a config that trains an adapted model on a data set, on top of the model's. Return a
    description of the data.

    The schedule has 12 epochs, at least 1000 iterations.

    Args:
        config: File to write. What the library reads is written into NAME-coco or NAME-maps beside
            it.
        source: What the data were read from.
        tiles: The tiles that were cut from `source`, if it is rasters.

    Raises:
        ValueError: If a name has what mmengine replaces in a config.
    """
    description = printable(f"{name_of(source)}: {data.describe()}")
    ending = "coco" if adapted.is_detector else "maps"
    copies = config.resolve().with_name(f"{config.stem}-{ending}")
    for text in (str(source), str(copies), *data.classes):
        if "{{" in text:
            raise ValueError(f"{text!r} has {{{{, which mmengine replaces in a config: rename it")
    origin = dict(path=str(source), copies=str(copies), is_cut=tiles is not None)
    arguments = write_dataset(data, source, copies)
    has_bands = tiles is not None and has_other_bands(adapted.cfg, tiles)
    raster = ""
    if tiles is not None:
        note = "how rasters are read: defaults of xcit-mm raster"
        raster = f"raster = {to_code(tiles.settings)}  # {note}\n"
    substitutes = dict(
        description=description,
        source=to_code(origin),
        **_describe_model(adapted),
        **_describe_task(adapted, bool(data.held_out)),
        training=to_code(arguments["train"]),
        held_out=to_code(arguments["val"]) if data.held_out else "training",
        classes=data.classes,
        iterations=max(1000, 12 * len(data.training.images) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        raster=raster,
        fill_stem=", fill_stem=True" if has_bands else "",
    )
    template = shipped_folder("configs") / "_base_" / "finetuning.txt"
    with atomic_write(config) as file:
        file.write(Template(template.read_text()).substitute(substitutes).encode())
    return description


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
        model=printable(adapted.name),
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
