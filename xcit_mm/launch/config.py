"""The config of a fine-tuning, written from a model and the description of a data set."""

import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..checks.own_data import check_dataset, raise_failures
from ..datasets.dataset import Dataset
from ..datasets.formats import read_maps, read_objects
from ..datasets.writing import is_current, read_state, write_dataset
from ..models.build import has_pyramid
from ..utils.atomic import atomic_write
from ..utils.configs import read_config
from ..utils.scripts import shipped_folder
from ..weights.zoo import find_model
from .model import (
    Adapted,
    Pipeline,
    adapt_detector,
    adapt_segmentor,
    difference,
    find_pipelines,
    remove_pretrained,
)
from .rasters import adapt_to_tiles, check_is_new, has_other_bands

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_BATCH_SIZE = 2
_RATE = 1e-4
_LAYER_DECAY = """constructor="LayerDecayOptimWrapperConstructor",  # lower nearer to the image
    paramwise_cfg=dict(layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0))),"""
_ONE_RATE = "paramwise_cfg=dict(norm_decay_mult=0.0),"
_VALIDATION = """val_dataloader, val_evaluator = test_dataloader, test_evaluator
val_cfg = dict(_delete_=True, type="ValLoop")"""
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there are no held-out images"

_MAPS = dict(
    copies="maps",  # end of the name of the folder of copies
    dataset_type="BaseSegDataset",
    evaluator='type="IoUMetric", iou_metrics=["mIoU"]',
    best="'mIoU'",
    balanced="",
)
_BALANCED = """
# For rare classes; it cost 6.5 mask AP of few figs among nuts.
# train_data = dict(type="ClassBalancedDataset", oversample_thr=0.5, dataset=train_data)"""


def find_start(model: str) -> tuple[str, str | None]:
    """Return the path of a model's config and its checkpoint, as `find_model` does. A config alone
    has no checkpoint: it trains from its own start.
    """
    return (model, None) if model.endswith(".py") else find_model(model)


def write_finetuning_config(
    model: str,
    data: Path,
    config: Path,
    boxes: bool = False,
    tiles: "Tiles | None" = None,
    skip_checks: bool = False,
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
        tiles: The tiles that were cut from `data`, which are rasters.
        skip_checks: Whether the data are written though a check may fail.

    Raises:
        FileExistsError: If `config` exists.
        FileNotFoundError: If files are missing.
        ValueError: If the model is another, or the data cannot train it.
    """
    check_is_new(config)
    base, checkpoint = find_start(model)
    cfg = read_config(base)
    find_pipelines(model, cfg)  # raises before the data are read
    is_detector = cfg.default_scope == "mmdet"
    if tiles is not None:
        dataset = tiles.dataset
    else:
        dataset = read_objects(data) if is_detector else read_maps(data)
    if is_detector:
        adapted = adapt_detector(model, cfg, dataset, boxes)
        task = _describe_objects(adapted.masks)
    else:
        adapted = adapt_segmentor(model, cfg, len(dataset.classes))
        task = _MAPS
    if tiles is None and not skip_checks:
        raise_failures(check_dataset(dataset, adapted.masks))
    if checkpoint:
        remove_pretrained(adapted.model)
    if tiles is not None:
        adapt_to_tiles(adapted, cfg, tiles)
    description = f"{data.stem if data.is_file() else data.name}: {dataset.describe()}"
    copies = config.resolve().with_name(f"{config.stem}-{task['copies']}")
    values = dict(
        task,
        model=model,
        description=description,
        source=to_code(dict(path=str(data), copies=str(copies), is_cut=tiles is not None)),
        **_describe_data(dataset, write_dataset(dataset, copies)),
        **_describe_start(base, checkpoint, cfg),
        **_describe_tiles(cfg, tiles),
        **_describe_adapted(adapted, cfg),
    )
    if not dataset.held_out:
        values["best"] = "None"
    template = shipped_folder("configs") / "_base_" / "finetuning.txt"
    with atomic_write(config) as file:
        file.write(Template(template.read_text()).substitute(values).encode())
    return description


# Each of the following functions returns values of the template.


def _describe_objects(masks: bool) -> dict[str, str]:
    metric = ["bbox", "segm"] if masks else ["bbox"]
    evaluator = f'type="CocoMetric", ann_file=held_out["ann_file"], metric={metric}, classwise=True'
    return dict(
        copies="coco",
        dataset_type="CocoDataset",
        evaluator=evaluator,
        best=repr(f"coco/{metric[-1]}_mAP"),
        balanced=_BALANCED,
    )


def _describe_data(dataset: Dataset, arguments: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    held_out = arguments.get("val")
    return dict(
        training=to_code(arguments["train"]),
        held_out=to_code(held_out) if held_out else "training",
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        classes=dataset.classes,
        iterations=max(1000, 12 * len(dataset.training.images) // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
    )


def _describe_start(base: str, checkpoint: str | None, cfg: Config) -> dict[str, Any]:
    shipped = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2]
    if checkpoint is not None and Path(checkpoint).is_file():
        checkpoint = str(Path(checkpoint).resolve())
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    optim_wrapper = cfg.get("optim_wrapper") or {}
    return dict(
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(checkpoint),
        imports=list(dict.fromkeys(["xcit_mm", *imports])),
        rate=_RATE if checkpoint else optim_wrapper["optimizer"]["lr"],
        rates=_LAYER_DECAY if checkpoint and has_pyramid(cfg) else _ONE_RATE,
        clip_grad=to_code(optim_wrapper.get("clip_grad")),
    )


def _describe_tiles(cfg: Config, tiles: "Tiles | None") -> dict[str, str]:
    if tiles is None:
        return dict(raster="", fill_stem="")
    settings = f"raster = {to_code(tiles.settings)}"
    return dict(
        raster=f"{settings}  # how rasters are read: defaults of xcit-mm raster\n",
        fill_stem=', fill_stem="rgb-mean"' if has_other_bands(cfg, tiles) else "",
    )


def _describe_adapted(adapted: Adapted, cfg: Config) -> dict[str, str]:
    train_steps, test_steps = adapted.pipelines
    test_loader = {key: value for key, value in cfg.test_dataloader.items() if key != "dataset"}
    return dict(
        changes=to_code(difference(cfg.model.to_dict(), adapted.model)),
        train_pipeline=_lines(train_steps),
        test_pipeline=_lines(test_steps),
        test_loader=to_code(dict(_delete_=True) | test_loader),
    )


def _lines(steps: Pipeline) -> str:
    """Return the Python of a pipeline, a line for each step."""
    return "".join(f"\n    {to_code(step)}," for step in steps)


def to_code(value: Any) -> str:
    """Return the Python of a value, with dicts as dict(type=..., key=value), as people write
    configs.
    """
    if isinstance(value, dict):
        items = [f"{key}={to_code(item)}" for key, item in value.items() if key != "type"]
        if "type" in value:
            items.insert(0, f"type={to_code(value['type'])}")
        return f"dict({', '.join(items)})"
    if isinstance(value, list):
        return f"[{', '.join(map(to_code, value))}]"
    return repr(value.__name__ if isinstance(value, type) else value)


def refresh_copies(cfg: Config) -> None:
    """Write the copies of a config of `train --from` again if the source has changed, or if they
    are missing.

    Raises:
        FileNotFoundError: If the source has moved.
        ValueError: If its classes have changed, or it cannot be read.
    """
    source = cfg.get("source") or {}
    if not source.get("copies"):
        return
    path = Path(source["path"])
    copies = Path(source["copies"])
    state = read_state(copies)
    if state and is_current(state):
        return
    if source.get("is_cut"):
        problem = f"{path}, its labels or tiles are not as they were when the tiles were cut"
        print(f"{problem}: to cut them again, write another config by --from", file=sys.stderr)
        return
    dataset = read_objects(path) if cfg.default_scope == "mmdet" else read_maps(path)
    for key, now in (("classes", list(dataset.classes)), ("held_out", bool(dataset.held_out))):
        if state and state[key] != now:
            problem = f"{path} has {key}={now}, and had {state[key]} when the config was written"
            raise ValueError(f"{problem}: write another config by --from")
    write_dataset(dataset, copies)
    reason = f"{path} has changed" if state else f"{copies} is missing"
    print(f"{reason}; {copies} is written again: {dataset.describe()}", file=sys.stderr)
