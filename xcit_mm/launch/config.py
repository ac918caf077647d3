"""The config of a fine-tuning, written from a model and the description of a data set."""

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..utils.atomic import atomic_write
from ..utils.configs import read_config, type_name
from ..utils.scripts import shipped_folder
from ..weights.zoo import find_model
from .copies import write_copies
from .dataset import Dataset
from .formats import read_objects
from .maps import read_maps
from .model import (
    adapt_detector,
    adapt_maps,
    adapt_objects,
    adapt_segmentor,
    check_bands,
    find_pipelines,
    has_xcit,
)
from .rasters import adapt_model, adapt_steps, has_other_bands

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_BATCH_SIZE = 2
_RATE = 1e-4
_ONE_SIZE = {"LoadImageFromFile", "LoadAnnotations", "Resize", "RandomFlip", "PackDetInputs"}
_LAYER_DECAY = """constructor="LayerDecayOptimWrapperConstructor",  # lower nearer to the image
    paramwise_cfg=dict(layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0))),"""
_ONE_RATE = "paramwise_cfg=dict(norm_decay_mult=0.0),"
_VALIDATION = """val_dataloader, val_evaluator = test_dataloader, test_evaluator
val_cfg = dict(_delete_=True, type="ValLoop")"""
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there are no held-out images"
_RASTER = "  # how rasters are read: defaults of xcit-mm raster\n"


def find_start(model: str) -> tuple[str, str | None]:
    """Return the path of a model's config and its checkpoint, as `find_model`. A config alone has
    no checkpoint: it trains from its own start.
    """
    return (model, None) if model.endswith(".py") else find_model(model)


def write_finetuning_config(
    model: str, data: Path, config: Path, boxes: bool = False, tiles: "Tiles | None" = None
) -> str:
    """Write a config that fine-tunes a detector or a segmentor on a data set, on top of the
    model's. Return a description of the data.

    A model with masks becomes one without if no annotation has a mask. The schedule has 12 epochs,
    at least 1000 iterations.

    Args:
        model: As in `find_start`.
        data: For a detector as in `read_objects`, for a segmentor as in `read_maps`.
        config: File to write. What the library reads is written into NAME-coco or NAME-maps beside
            it.
        boxes: Whether a model with masks shall find only boxes.
        tiles: The tiles of rasters in `data`.

    Raises:
        FileExistsError: If `config` exists.
        FileNotFoundError: If files are missing.
        ValueError: If the model is another, or the data cannot train it.
    """
    if config.exists():
        raise FileExistsError(f"{config} exists: train it, or name another by --config")
    base, checkpoint = find_start(model)
    cfg = read_config(base)
    pipelines = find_pipelines(model, cfg)
    dataset: Dataset[Any]
    if cfg.default_scope == "mmdet":
        dataset = read_objects(data)
        if tiles is None:
            check_bands(dataset)
        changes, masks = adapt_detector(model, cfg.model, dataset, boxes)
        background = dataset.training.empty > 0
        pipelines = [adapt_objects(steps, masks, background) for steps in pipelines]
        pipelines[0] = _resize_randomly(pipelines[0])
        metric = ["bbox", "segm"] if masks else ["bbox"]
        values: dict[str, Any] = dict(metric=metric)
        best = f"coco/{metric[-1]}_mAP"
        task = "objects"
    else:
        dataset = read_maps(data)
        changes = adapt_segmentor(model, cfg.model, len(dataset.classes))
        pipelines = [adapt_maps(steps) for steps in pipelines]
        values = {}
        best = "mIoU"
        task = "maps"
    if tiles is not None:
        changes = adapt_model(cfg, changes, tiles)
        pipelines = [adapt_steps(steps, cfg, tiles) for steps in pipelines]
    has_new_stem = tiles is not None and has_other_bands(cfg, tiles)
    if checkpoint is None:  # of the backbone alone, if the config says so
        changes.get("backbone", {}).pop("init_cfg", None)
    copies = config.resolve().with_name(f"{config.stem}-{'coco' if task == 'objects' else 'maps'}")
    arguments = write_copies(dataset, data, copies)
    description = f"{data.stem if data.is_file() else data.name}: {dataset.describe()}"
    held_out = arguments.get("val")
    shipped = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2]
    if checkpoint is not None and Path(checkpoint).is_file():
        checkpoint = str(Path(checkpoint).resolve())
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    images = len(dataset.training)
    test_loader = {key: value for key, value in cfg.test_dataloader.items() if key != "dataset"}
    values |= dict(
        model=model,
        description=description,
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(checkpoint),
        imports=list(dict.fromkeys(["xcit_mm", *imports])),
        source=to_code(dict(path=str(data), copies=str(copies))),
        raster="" if tiles is None else f"raster = {to_code(tiles.settings)}{_RASTER}",
        fill_stem=', fill_stem="rgb-mean"' if has_new_stem else "",
        classes=dataset.classes,
        changes=to_code(changes),
        training=to_code(arguments["train"]),
        held_out=to_code(held_out) if held_out else "training",
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        train_pipeline=_lines(pipelines[0]),
        test_loader=to_code(dict(_delete_=True) | test_loader),
        test_pipeline=_lines(pipelines[1]),
        iterations=max(1000, 12 * images // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        best=repr(best if held_out else None),
        clip_grad=to_code(cfg.get("optim_wrapper", {}).get("clip_grad")),
        rate=_RATE if checkpoint else cfg.optim_wrapper.optimizer.lr,
        rates=_LAYER_DECAY if checkpoint and has_xcit(cfg) else _ONE_RATE,
    )
    folder = shipped_folder("configs") / "_base_"
    task_lines = (folder / f"finetuning_{task}.txt").read_text()
    frame = (folder / "finetuning.txt").read_text().replace("$task", task_lines)
    with atomic_write(config) as file:
        file.write(Template(frame).substitute(values).encode())
    return description


def _resize_randomly(steps: list[dict]) -> list[dict]:
    """Replace the one size of photos by random sizes, unless the pipeline has other steps too."""
    if {type_name(step) for step in steps} != _ONE_SIZE:
        return steps
    changed = []
    for step in steps:
        if type_name(step) == "Resize" and step.get("scale"):
            changed.append(dict(step, type="RandomResize", ratio_range=(0.67, 1.5)))
        else:
            changed.append(step)
    return changed


def _lines(steps: Sequence[dict]) -> str:
    """Return the Python of a pipeline, a line for each step."""
    return "".join(f"\n    {to_code(step)}," for step in steps)


def to_code(value: Any) -> str:
    """Return the Python of a value, with dicts as dict(type=..., key=value), as people write
    configs.
    """
    if isinstance(value, dict):
        keys = sorted(value, key="type".__ne__)
        items = [f"{key}={to_code(value[key])}" for key in keys]
        return f"dict({', '.join(items)})"
    if isinstance(value, list):
        return f"[{', '.join(map(to_code, value))}]"
    return repr(value.__name__ if isinstance(value, type) else value)
