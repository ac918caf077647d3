"""The config of a fine-tuning, written from a model and the description of a data set."""

from pathlib import Path
from string import Template
from typing import Any

from mmengine.config import Config

from ..utils.atomic import atomic_write
from ..utils.configs import read_config, type_name
from ..utils.scripts import shipped_folder
from ..weights.zoo import find_model
from .dataset import Dataset, Maps, Objects
from .files import common_folder
from .formats import read_objects
from .maps import read_maps

_BATCH_SIZE = 2
_VALIDATION = "val_dataloader, val_evaluator = test_dataloader, test_evaluator"
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there are no held-out images"


def write_finetuning_config(model: str, data: Path, config: Path) -> None:
    """Write a config that fine-tunes a Mask R-CNN, Faster R-CNN or Semantic FPN on a data set, on
    top of the model's.

    A Mask R-CNN becomes a Faster R-CNN if annotations lack masks. The schedule has 12 epochs, at
    least 1000 iterations.

    Args:
        model: As in `find_model`.
        data: For a detector a COCO json, or a folder with jsons, of YOLO or of Pascal VOC. For a
            segmentor a folder with images and segmentation maps in two folders, and perhaps
            classes.txt.
        config: File to write. The jsons of a YOLO or Pascal VOC data set are in NAME-coco beside
            it.

    Raises:
        FileExistsError: If `config` exists.
        FileNotFoundError: If files are missing.
        ValueError: If the model is another, or the data cannot train it.
    """
    if config.exists():
        raise FileExistsError(f"{config} exists: train it, or name another by --config")
    base, checkpoint = find_model(model)
    cfg = read_config(base)
    if _is_detector(model, cfg):
        objects = read_objects(data)
        for name, split in objects.splits.items():
            if split.json is None:
                split.write(config.resolve().with_name(f"{config.stem}-coco") / f"{name}.json")
        values = _common_values(objects) | _detector_values(type_name(cfg.model), objects)
        template = "finetuning_objects.txt"
    else:
        maps = read_maps(data)
        values = _common_values(maps) | _segmentor_values(maps)
        template = "finetuning_maps.txt"
    shipped = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2]
    is_file = Path(checkpoint).is_file()
    values |= dict(
        model=model,
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(str(Path(checkpoint).resolve()) if is_file else checkpoint),
    )
    folder = shipped_folder("configs") / "_base_"
    task = (folder / template).read_text()
    frame = (folder / "finetuning.txt").read_text().replace("$task", task)
    with atomic_write(config) as file:
        file.write(Template(frame).substitute(values).encode())


def _is_detector(model: str, cfg: Config) -> bool:
    """Return whether a model is a detector that can be fine-tuned, or else such a segmentor.

    Raises:
        ValueError: If it is another model.
    """
    name = type_name(cfg.model)
    head = cfg.model.get("decode_head") or {}
    if name in ("MaskRCNN", "FasterRCNN"):
        if type_name(cfg.train_dataloader.dataset) == "CocoDataset":
            return True
    elif name == "EncoderDecoder" and type_name(head) == "FPNHead":
        return False
    if head:
        name = f"{name} with {type_name(head)}"
    raise ValueError(f"{model} is a {name}: --from takes Mask R-CNN, Faster R-CNN and Semantic FPN")


def _common_values(dataset: Dataset) -> dict[str, object]:
    """Return the values that configs of detectors and of segmentors have in common."""
    images = len(dataset.training)
    held_out = dataset.held_out
    return dict(
        images=images,
        classes=dataset.classes,
        training=to_code(_arguments(dataset.training)),
        held_out=to_code(_arguments(held_out)) if held_out else "training",
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        iterations=max(1000, 12 * images // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
    )


def _arguments(split: Objects | Maps) -> dict[str, Any]:
    """Return the arguments by which the data set of the library reads a split."""
    if isinstance(split, Objects):
        return dict(ann_file=str(split.json), data_prefix=dict(img=str(split.folder)))
    photos, maps = (str(common_folder(paths)) for paths in zip(*split.pairs, strict=True))
    return dict(data_prefix=dict(img_path=photos, seg_map_path=maps))


def _detector_values(model_type: str, dataset: Dataset[Objects]) -> dict[str, object]:
    annotations = dataset.training.content["annotations"]
    has_masks = model_type == "MaskRCNN" and all(
        annotation.get("segmentation") for annotation in annotations
    )
    heads = dict(num_classes=len(dataset.classes))
    changes: dict[str, Any] = dict(backbone=dict(init_cfg=None), roi_head=dict(bbox_head=heads))
    if has_masks:
        changes["roi_head"] |= dict(mask_head=heads)
    elif model_type == "MaskRCNN":
        changes["roi_head"] |= dict(mask_roi_extractor=None, mask_head=None)
        changes["type"] = "FasterRCNN"
    best = "coco/segm_mAP" if has_masks else "coco/bbox_mAP"
    return dict(
        changes=to_code(changes),
        masks=has_masks,
        metric=["bbox", "segm"] if has_masks else ["bbox"],
        best=repr(best if dataset.held_out else None),
    )


def _segmentor_values(dataset: Dataset[Maps]) -> dict[str, object]:
    photo, segmentation_map = dataset.training.pairs[0]
    suffixes = dict(img_suffix=photo.suffix, seg_map_suffix=segmentation_map.suffix)
    best = "mIoU" if dataset.held_out else None
    return dict(suffixes=to_code(suffixes), best=repr(best))


def to_code(value: Any) -> str:
    """Return the Python of a value, with dicts as dict(key=value), as people write configs."""
    if isinstance(value, dict):
        items = [f"{key}={to_code(item)}" for key, item in value.items()]
        return f"dict({', '.join(items)})"
    return repr(value)
