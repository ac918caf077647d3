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
_RATE = 1e-4
_VALIDATION = "test_dataloader, test_evaluator, dict(_delete_=True, type='ValLoop')"
_NO_VALIDATION = "None, None, None  # there are no held-out images"


def write_config(
    config: Path, adapted: Adapted, dataset: Dataset, source: Source, tiles: "Tiles | None" = None
) -> Path:
    """Write a config that trains an adapted model on a data set, read from a source or cut into
    tiles, for 12 epochs, at least 1000 iterations. Return the folder of its objects, beside it.
    """
    folder = config.resolve().with_name(f"{config.stem}-coco")
    paths = {name: str(path) for name, path in vars(source).items() if path is not None}
    arguments = write_dataset(dataset, folder)
    raster = ""
    if tiles is not None:
        note = "how rasters are read: defaults of xcit-mm raster"
        raster = f"raster = {to_code(tiles.settings)}  # {note}\n"
    has_other_stem = tiles is not None and has_other_bands(adapted.cfg, tiles)
    values = dict(
        description=repr(dataset.describe())[1:-1],  # one line, whatever names it has
        source=to_code(paths | dict(folder=str(folder))),
        training=to_code(arguments["train"]),
        held_out=to_code(arguments["val"]) if dataset.val else "training",
        validation=_VALIDATION if dataset.val else _NO_VALIDATION,
        classes=dataset.classes,
        iterations=max(1000, 12 * len(dataset.train.images) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        raster=raster,
        fill_stem=", fill_stem=True" if has_other_stem else "",
    )
    metric = ["bbox", "segm"] if adapted.masks else ["bbox"]
    best = "mIoU"
    values |= dict(dataset_type="BaseSegDataset", evaluator="type='IoUMetric'")
    if adapted.is_detector:
        best = f"coco/{metric[-1]}_mAP"
        options = f"ann_file=held_out['ann_file'], metric={metric}, classwise=True"
        values |= dict(dataset_type="CocoDataset", evaluator=f"type='CocoMetric', {options}")
    values["best"] = repr(best if dataset.val else None)
    template = shipped_folder("configs") / "_base_" / "finetuning.txt"
    text = Template(template.read_text()).substitute(values | _describe_model(adapted))
    with atomic_write(config) as file:
        file.write(text.encode())
    return folder


def write_data_anew(cfg: Config) -> None:
    """Write the objects of a config of `train --from` as the user's files are now, so that
    corrected labels count. Raise as `read_dataset`, and ValueError if classes have changed.
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
    base = Path(adapted.base)
    shipped = base.as_posix().partition("/xcit_mm/.mim/configs/")[2]
    checkpoint = adapted.checkpoint
    if checkpoint is not None and Path(checkpoint).is_file():
        checkpoint = str(Path(checkpoint).resolve())
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    constructor = "DefaultOptimWrapperConstructor"
    rates: dict[str, Any] = dict(norm_decay_mult=0.0)
    if checkpoint and has_pyramid(cfg):  # lower rates nearer to the image
        constructor = "LayerDecayOptimWrapperConstructor"
        rates = dict(layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0)))
    optim_wrapper = cfg.get("optim_wrapper") or {}
    test_loader = {key: value for key, value in cfg.test_dataloader.items() if key != "dataset"}
    pipelines = ["".join(f"\n    {to_code(step)}," for step in part) for part in adapted.pipelines]
    return dict(
        model=repr(adapted.name)[1:-1],
        base=repr(f"xcit_mm::{shipped}" if shipped else str(base.resolve())),
        checkpoint=repr(checkpoint),
        imports=list(dict.fromkeys(["xcit_mm", *imports])),
        rate=_RATE if checkpoint else optim_wrapper["optimizer"]["lr"],
        constructor=repr(constructor),
        rates=to_code(rates),
        clip_grad=to_code(optim_wrapper.get("clip_grad")),
        changes=to_code(difference(cfg.model.to_dict(), adapted.model)),
        train_pipeline=pipelines[0],
        test_pipeline=pipelines[1],
        test_loader=to_code(dict(_delete_=True) | test_loader),
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
