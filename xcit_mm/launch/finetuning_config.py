"""The config of a fine-tuning: a model's own config, adapted to the classes and labels of data."""

import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..datasets import IGNORED, CocoFile, Dataset, arguments_of
from ..models import MIN_SIZE
from ..models.build import has_pyramid, model_config
from ..prediction.preprocessing import Preprocessing
from ..prediction.view import trained_scale
from ..utils.atomic import atomic_write
from ..utils.config_parts import iter_parts, type_name
from ..utils.configs import read_config, shipped_folder
from ..utils.errors import ArgumentError
from ..utils.model_input import ModelInput
from ..weights.lookup import find_model

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_TAKEN = "only detectors and segmentors whose heads have num_classes can be fine-tuned"
_LOADERS = ("train_dataloader", "test_dataloader")
_WITHOUT_CLASSES = ("backbone", "neck", "data_preprocessor", "rpn_head")
_LOADING = ("LoadImageFromFile", "LoadRasterFromFile")
_SIZING = (
    "Resize",
    "RandomResize",
    "RandomChoiceResize",
    "ResizeShortestEdge",
    "ResizeToMultiple",
    "RandomCrop",
)
# Share of a proposal above which it counts neither as object nor as background.
_IGNORED_OVERLAP = 0.5
_END_OF_VALUES = "# The same in every config that `finetune` writes.\n"


def read_model(model: str | Path, checkpoint: str | Path | None) -> Config:
    """Read the config of a model to fine-tune, with the weights to start from as `load_from`.

    A config alone starts from the weights that it names itself.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If the model is neither a detector nor a segmentor, or a data set in the config
            is a wrapper, whose pipeline does not begin with a file.
    """
    config = str(model)
    if checkpoint or not config.endswith(".py"):
        config, checkpoint = find_model(model, checkpoint)
        if Path(checkpoint).is_file():
            checkpoint = str(Path(checkpoint).resolve())
    cfg = read_config(config)
    if cfg.get("default_scope") not in ("mmdet", "mmseg"):
        raise ArgumentError("model", f"{model} is a {type_name(cfg.model)}: {_TAKEN}")
    for name in _LOADERS:
        data = cfg[name].dataset
        if "dataset" in data or "datasets" in data:
            raise ArgumentError("model", f"its {type_name(data)} wraps data sets: remove it")
    cfg.load_from = checkpoint or cfg.get("load_from")
    return cfg


def check_model(cfg: Config, boxes: bool, whole: bool) -> None:
    """Raise ArgumentError if a model cannot be trained on boxes only, or whole."""
    name = type_name(cfg.model)
    if boxes and cfg.default_scope == "mmseg":
        raise ArgumentError("boxes", f"{name} finds no boxes: leave it out")
    if whole and name not in ("EncoderDecoder", "WholeImageEncoderDecoder"):
        raise ArgumentError("whole", f"{name} cannot train on whole images: leave it out")


def adapt(
    cfg: Config, dataset: Dataset, tiles: "Tiles | None", boxes: bool, whole: bool
) -> dict[str, Any]:
    """Adapt the config of a model to the classes, labels and images of a data set.

    Args:
        tiles: The tiles of a raster that are the data set. None for photos.
        boxes: Whether to train boxes only, with a model that could predict masks.
        whole: Whether the model sees images whole, at their own size.

    Returns:
        The new values of `model`, `train_pipeline`, `test_pipeline` and `large`, for a detector the
        `metric`, for tiles `raster`, and the `batch_size`.

    Raises:
        ValueError: If the model cannot be fine-tuned on the labels.
    """
    model = model_config(cfg).to_dict()
    train, test = (cfg[name].dataset.to_dict()["pipeline"] for name in _LOADERS)
    metric = None
    if cfg.default_scope == "mmdet":
        has_masks = _choose_masks(model, dataset, boxes)
        metric = ["bbox", "segm"] if has_masks else ["bbox"]
        _load_objects([train, test], has_masks)
    else:
        _pad_to_cells(model)
        for step in iter_parts([train, test]):
            step.pop("reduce_zero_label", None)  # labels are 0, 1, ...
    heads = [part for key, part in model.items() if key not in _WITHOUT_CLASSES]
    _set_classes(heads, len(dataset.classes))
    for part in iter_parts([heads, train, test]):
        if "ignore_index" in part:
            part["ignore_index"] = IGNORED
    if cfg.load_from:  # it replaces the backbone's own weights
        model["backbone"]["init_cfg"] = None
    values = dict(
        train_pipeline=train,
        test_pipeline=test,
        model=model,
        metric=metric,
        batch_size=2,
        large=_view(cfg, dataset, tiles),
    )
    if tiles is not None:
        _adapt_to_tiles(values, cfg, tiles)
    if whole:
        _adapt_to_whole(values)
    return values


def _choose_masks(model: dict[str, Any], dataset: Dataset, boxes: bool) -> bool:
    """Return whether a detector will find masks.

    If it could, but the labels have none or the user wants boxes, its mask head is removed.

    Raises:
        ValueError: If the detector finds objects by their masks alone.
    """
    roi_head = model.get("roi_head") or {}
    if not ("panoptic_head" in model or model.get("mask_head") or roi_head.get("mask_head")):
        return False
    objects = dataset.train.annotations if isinstance(dataset.train, CocoFile) else []
    if not boxes and any(annotation.has_mask for annotation in objects):
        return True  # a check of the run names objects without masks
    if not roi_head:
        fix = "leave boxes out" if boxes else "give data with masks"
        raise ValueError(f"{model['type']} needs masks: {fix}, or give another model")
    roi_head.update(mask_roi_extractor=None, mask_head=None)
    return False


def _load_objects(pipelines: list[Any], has_masks: bool) -> None:
    """Let pipelines load boxes and, if wanted, masks, and keep photos without objects."""
    for step in iter_parts(pipelines):
        name = type_name(step)
        if name == "LoadAnnotations":
            step.update(with_bbox=True, with_mask=has_masks)
        elif name == "RandomCrop":
            step["allow_negative_crop"] = True
        elif name == "FilterAnnotations":  # mmdet's keep_empty=True drops photos without objects
            step.update(by_mask=has_masks and step.get("by_mask", False), keep_empty=False)


def _pad_to_cells(model: dict[str, Any]) -> None:
    """Let a segmentor pad test images to whole cells of its coarsest feature map.

    For other sizes, mmseg shifts the map against the image. Its preprocessor takes either a size
    or a divisor, so a size is removed. A MaskFormerHead must not pad, since mmseg misplaces its
    padded maps. In the training, padded labels are ignored.
    """
    preprocessor = model["data_preprocessor"]
    preprocessor["seg_pad_val"] = IGNORED
    if "MaskFormerHead" not in map(type_name, iter_parts(model["decode_head"])):
        divisor = (preprocessor.get("test_cfg") or {}).get("size_divisor") or 1
        preprocessor["test_cfg"] = dict(size=None, size_divisor=math.lcm(divisor, MIN_SIZE))


def _set_classes(heads: list[Any], classes: int) -> None:
    """Set the number of classes in all heads. Weights of another number of classes go.

    Raises:
        ValueError: If no head has such a number, or a head tells one class from the background.
    """
    old = 0
    for part in iter_parts(heads):
        for key in {"num_classes", "num_things_classes"} & part.keys():
            old = part[key]
            part[key] = classes
        if "num_stuff_classes" in part:
            part["num_stuff_classes"] = 0
        if part.get("out_channels") == 1 and "num_classes" in part:
            problem = "its head tells one class from the background (out_channels=1)"
            raise ArgumentError("model", f"{problem}: give another model")
        weights = part.get("class_weight")
        if isinstance(weights, list) and old != classes:
            # The last weight of mmdet's and mmseg's mask classifiers is that of no object.
            has_no_object = {*weights[:-1]} == {1.0} and weights[-1] < 1
            part["class_weight"] = [1.0] * classes + weights[-1:] if has_no_object else None
    if not old:
        raise ValueError(f"the model has no head with num_classes: {_TAKEN}")


def _view(cfg: Config, dataset: Dataset, tiles: "Tiles | None") -> dict[str, Any]:
    """Return how the model sees large images: the scale, and the size of a raster's pixels.

    The scale is the factor by which the test pipeline resizes a tile, or the photo with the median
    area. If the pipeline stretches images, it is None. With segmentation maps, twenty photos are
    read.
    """
    preprocess = Preprocessing(cfg)
    if tiles is not None:
        sizes = [(tiles.settings["tile"], tiles.settings["tile"])]
    elif isinstance(dataset.train, CocoFile):
        sizes = [(image.height, image.width) for image in dataset.train.images]
    else:
        step = math.ceil(len(dataset.train.images) / 20)
        sizes = [preprocess.read(path).shape[:2] for path in dataset.train.paths[::step]]
    median = sorted(sizes, key=math.prod)[len(sizes) // 2]
    scale = None
    with suppress(ValueError):  # the pipeline stretches images
        scale = round(trained_scale(preprocess, median), 3)
    return dict(scale=scale, pixel_size=tiles.pixel_size if tiles else None)


def _adapt_to_tiles(values: dict[str, Any], cfg: Config, tiles: "Tiles") -> None:
    """Adapt the values from `adapt` to tiles of a raster.

    The model takes the bands of the tiles. If a tile shows only a small part of an object, this
    part counts neither as an object nor as background.
    """
    values["raster"] = tiles.settings
    model = values["model"]
    for assigner in iter_parts(model.get("train_cfg")):
        if "ignore_iof_thr" in assigner:  # a part of an object is iscrowd, see `write_objects`
            assigner["ignore_iof_thr"] = _IGNORED_OVERLAP
    if tiles.statistics is None:  # they are images of three bands and 8 bits
        return
    has_other_bands = ModelInput(cfg).raster_step is None
    if has_other_bands:
        model["backbone"]["in_channels"] = len(tiles.settings["bands"])
        # The pipeline normalises the bands.
        model["data_preprocessor"].update(mean=None, std=None, bgr_to_rgb=False, rgb_to_bgr=False)
    for name in ("train_pipeline", "test_pipeline"):
        steps = [
            dict(type="LoadRasterFromFile") if type_name(step) in _LOADING else step
            for step in values[name]
        ]
        if has_other_bands:
            mean, std = tiles.statistics
            # The distortion needs three channels.
            steps = [step for step in steps if type_name(step) != "PhotoMetricDistortion"]
            steps.insert(-1, dict(type="Normalize", mean=mean, std=std, to_rgb=False))
        values[name] = steps


def _adapt_to_whole(values: dict[str, Any]) -> None:
    """Adapt the values from `adapt` to images that the model sees whole, at their own size.

    A batch is one image, since images have different sizes.

    Raises:
        ArgumentError: If a step of a pipeline holds others that resize or crop.
    """
    model = values["model"]
    model["type"] = "xcit_mm.WholeImageEncoderDecoder"
    model["backbone"].update(with_cp="bands", norm_eval=True)
    model["data_preprocessor"].update(size=None, size_divisor=MIN_SIZE)
    model["test_cfg"] = dict(mode="whole")
    for name in ("train_pipeline", "test_pipeline"):
        steps = [step for step in values[name] if type_name(step) not in _SIZING]
        if any(type_name(part) in _SIZING for part in iter_parts(steps)):
            raise ArgumentError("model", f"a step in its {name} holds others that resize or crop")
        values[name] = steps
    values["large"]["scale"] = 1.0
    values["batch_size"] = 1


def write_config(
    config: Path, cfg: Config, dataset: Dataset, folder: Path, values: dict[str, Any]
) -> None:
    """Write the config for a fine-tuning of 12 epochs, but at least 1000 iterations.

    Its optimizer is AdamW. Without weights to start from, it has the learning rate that AdamW has
    in the model's own config.

    Args:
        cfg: The model's own config, with its checkpoint as `load_from`.
        folder: Where the objects of the data set are.
        values: What `adapt` returns, the user's files as `source`, and the `work_dir`.
    """
    optim_wrapper = cfg.get("optim_wrapper") or {}
    optimizer = optim_wrapper.get("optimizer") or {}
    keeps_rate = not cfg.load_from and optimizer.get("type") == "AdamW"  # that of SGD is too high
    imports = (cfg.get("custom_imports") or {}).get("imports") or []
    arguments = arguments_of(dataset, folder)
    constructor = "DefaultOptimWrapperConstructor"
    if cfg.load_from and has_pyramid(cfg):  # lower rates nearer to the image
        constructor = "LayerDecayOptimWrapperConstructor"
    values = values | dict(
        training=arguments["train"],
        held_out=arguments.get("val", arguments["train"]),
        is_validated=dataset.val is not None,
        classes=dataset.classes,
        max_iters=max(1000, 12 * len(dataset.train.images) // values["batch_size"]),
        load_from=cfg.load_from,
        custom_imports=dict(imports=list(dict.fromkeys(["xcit_mm", *imports]))),
        learning_rate=optimizer["lr"] if keeps_rate else 1e-4,
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
    same_in_all = template[template.index(_END_OF_VALUES) :]
    with atomic_write(config) as file:
        file.write(f"{header}{Config(values).pretty_text}\n{same_in_all}".encode())


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
