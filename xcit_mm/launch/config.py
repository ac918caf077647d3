"""The config of a fine-tuning, written from a model and the description of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..utils.atomic import atomic_write
from ..utils.configs import read_config, type_name
from ..utils.scripts import shipped_folder
from ..weights.zoo import find_model
from .copies import write_copies
from .dataset import Dataset, Maps, Objects
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
_COPIES = dict(objects="coco", maps="maps")  # ends of the names of folders of copies
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
    find_pipelines(model, cfg)  # raises before the data are read
    if cfg.default_scope == "mmdet":
        fitted = _fit_detector(model, cfg, read_objects(data), boxes, has_tiles=tiles is not None)
    else:
        fitted = _fit_segmentor(model, cfg, read_maps(data))
    if tiles is not None:
        fitted.changes = adapt_model(cfg, fitted.changes, tiles)
        fitted.pipelines = [adapt_steps(steps, cfg, tiles) for steps in fitted.pipelines]
    if checkpoint is None:  # of the backbone alone, if the config says so
        fitted.changes.get("backbone", {}).pop("init_cfg", None)
    copies = config.resolve().with_name(f"{config.stem}-{_COPIES[fitted.task]}")
    arguments = write_copies(fitted.dataset, data, copies)
    held_out = arguments.get("val")
    description = f"{data.stem if data.is_file() else data.name}: {fitted.dataset.describe()}"
    values = dict(
        model=model,
        description=description,
        source=to_code(dict(path=str(data), copies=str(copies))),
        training=to_code(arguments["train"]),
        held_out=to_code(held_out) if held_out else "training",
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        best=repr(fitted.best if held_out else None),
        **_describe_start(base, checkpoint, cfg, tiles),
        **_describe_fitted(fitted, cfg),
    )
    folder = shipped_folder("configs") / "_base_"
    task = (folder / f"finetuning_{fitted.task}.txt").read_text()
    frame = (folder / "finetuning.txt").read_text().replace("$task", task)
    with atomic_write(config) as file:
        file.write(Template(frame).substitute(values).encode())
    return description


@dataclass
class _Fitted:
    """A data set, and what a model's config has to change for it.

    Attributes:
        task: 'objects' or 'maps'.
        pipelines: Steps of training and test.
        metric: Metrics of a detector.
        best: Key of the score that tells the best checkpoint.
    """

    task: str
    dataset: Dataset[Any]
    changes: dict[str, Any]
    pipelines: list[list[dict]]
    metric: list[str]
    best: str


def _fit_detector(
    model: str, cfg: Config, dataset: Dataset[Objects], boxes: bool, has_tiles: bool
) -> _Fitted:
    if not has_tiles:
        check_bands(dataset)
    changes, masks = adapt_detector(model, cfg.model, dataset, boxes)
    background = dataset.training.empty > 0
    pipelines = find_pipelines(model, cfg)
    train_steps, test_steps = (adapt_objects(steps, masks, background) for steps in pipelines)
    metric = ["bbox", "segm"] if masks else ["bbox"]
    best = f"coco/{metric[-1]}_mAP"
    pipelines = [_resize_randomly(train_steps), test_steps]
    return _Fitted("objects", dataset, changes, pipelines, metric, best)


def _fit_segmentor(model: str, cfg: Config, dataset: Dataset[Maps]) -> _Fitted:
    changes = adapt_segmentor(model, cfg.model, len(dataset.classes))
    pipelines = [adapt_maps(steps) for steps in find_pipelines(model, cfg)]
    return _Fitted("maps", dataset, changes, pipelines, [], "mIoU")


def _describe_start(
    base: str, checkpoint: str | None, cfg: Config, tiles: "Tiles | None"
) -> dict[str, Any]:
    """Return the values of a written config that name the model from which it starts."""
    shipped = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2]
    if checkpoint is not None and Path(checkpoint).is_file():
        checkpoint = str(Path(checkpoint).resolve())
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    has_new_stem = tiles is not None and has_other_bands(cfg, tiles)
    return dict(
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(checkpoint),
        imports=list(dict.fromkeys(["xcit_mm", *imports])),
        raster="" if tiles is None else f"raster = {to_code(tiles.settings)}{_RASTER}",
        fill_stem=', fill_stem="rgb-mean"' if has_new_stem else "",
        rate=_RATE if checkpoint else cfg.optim_wrapper.optimizer.lr,
        rates=_LAYER_DECAY if checkpoint and has_xcit(cfg) else _ONE_RATE,
        clip_grad=to_code(cfg.get("optim_wrapper", {}).get("clip_grad")),
    )


def _describe_fitted(fitted: _Fitted, cfg: Config) -> dict[str, Any]:
    """Return the values of a written config that fit the model to the data set."""
    test_loader = {key: value for key, value in cfg.test_dataloader.items() if key != "dataset"}
    return dict(
        classes=fitted.dataset.classes,
        changes=to_code(fitted.changes),
        train_pipeline=_lines(fitted.pipelines[0]),
        test_loader=to_code(dict(_delete_=True) | test_loader),
        test_pipeline=_lines(fitted.pipelines[1]),
        metric=fitted.metric,
        iterations=max(1000, 12 * len(fitted.dataset.training) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
    )


def _resize_randomly(steps: list[dict]) -> list[dict]:
    """Replace the one size of photos by random sizes, unless the pipeline has other steps too.

    Measured in docs/benchmark.md, "Fine-tuning".
    """
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
