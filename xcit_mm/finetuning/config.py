"""Fine-tuning of a published or own model on a data set: a config for both, checked and trained."""

import argparse
import re
import sys
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..checks.coco import Coco, read_coco
from ..checks.launch import run_tool
from ..utils.atomic import atomic_write
from ..utils.cli import cli_main
from ..utils.configs import read_config, type_name
from ..utils.images import find_image_folder
from ..utils.scripts import shipped_folder
from ..weights.zoo import find_model
from .to_coco import EXPECTED, SPLITS, convert

_BATCH_SIZE = 2
_VALIDATION = "val_dataloader, val_evaluator = test_dataloader, test_evaluator"
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there are no held-out images"


class _Split(NamedTuple):
    """A json and the folder to which its file names are relative."""

    json: Path
    folder: Path
    content: Coco

    def __str__(self) -> str:
        """Return the arguments of a data set."""
        return f"dict(ann_file={str(self.json)!r}, data_prefix=dict(img={str(self.folder)!r}))"


def finetune(argv: list[str]) -> int:
    """Write the config of a fine-tuning, check it, and train it. Return the exit code.

    Args:
        argv: Command line with `--from`, `--data` and flags of the library's tools/train.py.
    """
    parser = argparse.ArgumentParser(
        usage="train --from MODEL --data DATA [--config CONFIG] [FLAG ...]"
    )
    parser.add_argument(
        "--from", dest="model", required=True, help="a model's name or a work folder"
    )
    parser.add_argument(
        "--data", type=Path, required=True, help=f"{EXPECTED}; folders of images and maps"
    )
    parser.add_argument("--config", type=Path, help="config to write (default: NAME_OF_DATA.py)")
    args, flags = parser.parse_known_args(argv)
    data = args.data.resolve()
    config = args.config or Path(
        re.sub(r"\W+", "-", data.stem if data.is_file() else data.name) + ".py"
    )

    def prepare() -> None:
        if "--launcher" in flags:
            raise ValueError(
                f"--from writes {config} in one process: then train it with --launcher"
            )
        write_finetuning_config(args.model, data, config)
        print(
            f"written: {config}. If a check fails, correct config or data, then train {config}",
            file=sys.stderr,
        )

    code = cli_main(prepare, "the run has not started", ValueError, OSError, ModuleNotFoundError)
    return code or run_tool("train", [str(config), *flags])


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
    kind, head = type_name(cfg.model), cfg.model.get("decode_head") or {}
    if (
        kind in ("MaskRCNN", "FasterRCNN")
        and type_name(cfg.train_dataloader.dataset) == "CocoDataset"
    ):
        template, images, values = "finetuning.txt", *_detection(kind, *_find_splits(data, config))
    elif kind == "EncoderDecoder" and type_name(head) == "FPNHead":
        template, images, values = "finetuning_maps.txt", *_segmentation(data)
    else:
        kind = f"{kind} with {type_name(head)}" if head else kind
        raise ValueError(
            f"{model} is a {kind}: --from takes Mask R-CNN, Faster R-CNN and Semantic FPN"
        )
    shipped, own = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2], Path(checkpoint)
    text = Template((shipped_folder("configs") / "_base_" / template).read_text()).substitute(
        model=model,
        images=images,
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(str(own.resolve()) if own.is_file() else checkpoint),
        iterations=max(1000, 12 * images // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        **values,
    )
    with atomic_write(config) as file:
        file.write(text.encode())


def _detection(
    kind: str, training: _Split, held_out: _Split | None = None
) -> tuple[int, dict[str, object]]:
    """Return the number of training images, and the values of the template of detectors."""
    names, annotations = (
        [each["name"] for each in training.content["categories"]],
        training.content["annotations"],
    )
    if not names or not annotations:
        raise ValueError(
            f"{training.json} has {len(names)} categories and {len(annotations)} annotations: annotate it"
        )
    has_masks = kind == "MaskRCNN" and all(
        annotation.get("segmentation") for annotation in annotations
    )
    from_boxes = kind == "MaskRCNN" and not has_masks
    masks = (
        ", mask_roi_extractor=None, mask_head=None"
        if from_boxes
        else ", mask_head=heads"
        if has_masks
        else ""
    )
    return len(training.content["images"]), dict(
        training=training,
        held_out=held_out or "training",
        classes=tuple(names),
        parts='type="FasterRCNN", ' * from_boxes + f"roi_head=dict(bbox_head=heads{masks})",
        masks=has_masks,
        metric=["bbox", "segm"] if has_masks else ["bbox"],
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        best=repr(f"coco/{'segm' if has_masks else 'bbox'}_mAP" if held_out else None),
    )


def _find_splits(data: Path, config: Path) -> list[_Split]:
    """Return the training images and, if there are any, the held-out images."""
    if data.is_file():
        return [_read_split(data)]
    if not data.is_dir():
        raise FileNotFoundError(f"no folder or file at {data}: expected {EXPECTED}")
    found = sorted(path for pattern in ("*.json", "*/*.json") for path in data.glob(pattern))
    found = [
        path for path in found if path.name.startswith("instances")
    ] or found  # COCO also has captions
    is_coco = any(
        b'"annotations"' in path.read_bytes() for path in found[:3]
    )  # labelme has a json for each image
    if not is_coco or any(data.glob("data.y*ml")):
        splits = convert(data, config.resolve().with_name(f"{config.stem}-coco"))
        return [
            _Split(*splits[split], read_coco(splits[split][0]))
            for split in SPLITS
            if split in splits
        ]
    training = [path for path in found if "train" in str(path.relative_to(data))] or found
    if len(training) != 1:
        listed = ", ".join(str(path.relative_to(data)) for path in training) or "none"
        raise ValueError(
            f"{data} must have one json with 'train' in its path, but has {listed}: give the json itself"
        )
    others = [
        path for kind in ("val", "test") for path in found if kind in str(path.relative_to(data))
    ]
    return [
        _read_split(path)
        for path in (*training, *[path for path in others if path not in training][:1])
    ]


def _read_split(path: Path) -> _Split:
    """Read a json, and find the folder of its images beside it or beside its folder."""
    content = read_coco(path)
    if not content["images"]:
        raise ValueError(f"{path} lists no images")
    name, file_name = path.stem.removeprefix("instances_"), content["images"][0]["file_name"]
    folder = find_image_folder(path, [file_name])
    if folder is None:
        raise FileNotFoundError(
            f"{file_name} of {path} is not in its folder, images/, {name}/ or images/{name}/"
        )
    if Path(file_name).suffix.lower() in (".tif", ".tiff"):
        raise ValueError(
            f"{file_name} may have many bands or 16 bits: write a config as in docs/bands.md"
        )
    return _Split(path, folder, content)


def _segmentation(data: Path) -> tuple[int, dict[str, object]]:
    """Return the number of training images, and the values of the template of segmentors."""
    splits: list[tuple[list[Path], list[Path]]] = []
    for names in SPLITS.values():
        files = [
            path
            for path in sorted(data.rglob("*.*"))
            if set(names) & set(path.relative_to(data).parts[:-1])
        ]
        photos = [path for path in files if path.suffix.lower() in (".jpg", ".jpeg")]
        splits.append((photos, [path for path in files if path.suffix == ".png"]))
    (photos, maps), held_out = splits[0], splits[1] if all(splits[1]) else None
    if not photos or not maps:
        expected = (
            "images/train and annotations/train, also val, with photos as .jpg and maps as .png"
        )
        raise ValueError(
            f"{data} has no images and segmentation maps: expected folders such as {expected}"
        )
    labels = {int(label) for path in maps for label in np.unique(np.asarray(Image.open(path)))} - {
        255
    }
    listed = data / "classes.txt"
    classes = (
        listed.read_text().split("\n")
        if listed.is_file()
        else [f"class {i}" for i in range(max(labels) + 1)]
    )
    training, testing = (
        dict(data_prefix=dict(img_path=str(photos[0].parent), seg_map_path=str(maps[0].parent)))
        for photos, maps in (splits[0], held_out or splits[0])
    )
    return len(maps), dict(
        training=training,
        held_out=testing if held_out else "training",
        suffix=repr(photos[0].suffix),
        classes=tuple(filter(None, map(str.strip, classes))),
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        best=repr("mIoU" if held_out else None),
    )
