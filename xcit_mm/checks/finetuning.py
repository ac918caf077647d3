"""Fine-tuning of a detector on a data set in COCO's format: a config for both, checked and trained."""

import argparse
import contextlib
import re
import sys
from pathlib import Path
from string import Template
from typing import NamedTuple

from ..utils.atomic import atomic_write
from ..utils.cli import cli_main
from ..utils.configs import read_config, type_name
from ..utils.image_headers import BANDS, BITS, BROKEN_TIFF, read_tiff_fields
from ..utils.scripts import shipped_folder
from ..weights.models import find_model
from .coco_json import Coco, read_coco
from .doctor import diagnose
from .launch import run_tool

_BATCH_SIZE = 2
_TEMPLATE = "_base_/finetuning.txt"  # in configs/
_BOXES = """# The json has boxes without masks.
boxes = dict(type="LoadAnnotations", with_bbox=True)
for loader, base in ((train_dataloader, _base_.train_dataloader), (test_dataloader, _base_.test_dataloader)):
    loader["dataset"]["pipeline"] = [boxes if "with_mask" in step else step for step in base.dataset.pipeline]
del loader, base
test_evaluator.update(metric="bbox")
tta_model = None
"""
_VALIDATION = "val_dataloader, val_evaluator = test_dataloader, test_evaluator"
_NO_VALIDATION = "val_dataloader = val_evaluator = val_cfg = None  # there is no json of held-out images"


class _Split(NamedTuple):
    """A json and the folder to which its file names are relative."""

    json: Path
    folder: Path
    content: Coco

    def __str__(self) -> str:
        """Return the arguments of a data set."""
        return f"dict(ann_file={str(self.json)!r}, data_prefix=dict(img={str(self.folder)!r}))"


def finetune(argv: list[str]) -> int:
    """Write the config of a fine-tuning, check it with the doctor, and train it. Return the exit code.

    Args:
        argv: Command line with `--from`, `--data` and flags of the library's tools/train.py.
    """
    parser = argparse.ArgumentParser(usage="train --from MODEL --data DATA [--config CONFIG] [FLAG ...]")
    parser.add_argument("--from", dest="model", required=True, help="a model's name or a work folder")
    parser.add_argument("--data", type=Path, required=True, help="a COCO json, or a folder with jsons and images")
    parser.add_argument("--config", type=Path, help="config to write (default: NAME_OF_DATA.py)")
    args, flags = parser.parse_known_args(argv)
    data = args.data.resolve()
    config = args.config or Path(re.sub(r"\W+", "-", data.stem if data.is_file() else data.name) + ".py")

    def prepare() -> int:
        if "--launcher" in flags:
            raise ValueError(f"--from writes {config} in one process: then train it with --launcher")
        write_finetuning_config(args.model, data, config)
        print(f"written: {config}", file=sys.stderr)
        with contextlib.redirect_stdout(sys.stderr):
            findings = list(diagnose(str(config), flags))
            print(*(finding for finding in findings if finding.level != "ok"), sep="\n")
        if any(finding.level == "FAIL" for finding in findings):
            raise ValueError(f"{config} is written, but fails a check: correct config or data, then train {config}")
        return 0

    code = cli_main(prepare, "the run has not started", ValueError, OSError, ModuleNotFoundError)
    return code or run_tool("train", [str(config), *flags])


def write_finetuning_config(model: str, data: Path, config: Path) -> None:
    """Write a config that fine-tunes a Mask R-CNN or Faster R-CNN on a data set. Its base is the model's config.

    A Mask R-CNN becomes a Faster R-CNN if annotations lack masks. The schedule has 12 epochs, at least 1000 iterations.

    Args:
        model: As in `find_model`.
        data: A COCO json of training images, or a folder with a json of training images, whose path contains 'train',
            and one of held-out images, whose path contains 'val' or 'test'.
        config: File to write.

    Raises:
        FileExistsError: If `config` exists.
        FileNotFoundError: If jsons or images are missing.
        ValueError: If the model is another, or the data cannot train it.
    """
    if config.exists():
        raise FileExistsError(f"{config} exists: train it, or name another by --config")
    base, checkpoint = find_model(model)
    cfg = read_config(base, [])
    if type_name(cfg.model) not in ("MaskRCNN", "FasterRCNN"):
        raise ValueError(f"{model} is a {type_name(cfg.model)}: --from takes Mask R-CNN and Faster R-CNN")
    if type_name(cfg.train_dataloader.dataset) != "CocoDataset":
        raise ValueError(f"{model} was trained on a {type_name(cfg.train_dataloader.dataset)}, not a CocoDataset")
    training, held_out = _find_splits(data)
    names, annotations = [each["name"] for each in training.content["categories"]], training.content["annotations"]
    if not names or not annotations:
        raise ValueError(f"{training.json} has {len(names)} categories and {len(annotations)} annotations: annotate it")
    is_mask_rcnn = type_name(cfg.model) == "MaskRCNN"
    has_masks = is_mask_rcnn and all(annotation.get("segmentation") for annotation in annotations)
    from_boxes = is_mask_rcnn and not has_masks
    kind = 'type="FasterRCNN", ' if from_boxes else ""
    masks = ", mask_roi_extractor=None, mask_head=None" if from_boxes else ", mask_head=heads" if has_masks else ""
    images = len(training.content["images"])
    shipped = Path(base).as_posix().partition("/xcit_mm/.mim/configs/")[2]
    own = Path(checkpoint)
    text = Template((shipped_folder("configs") / _TEMPLATE).read_text()).substitute(
        model=model,
        images=images,
        base=repr(f"xcit_mm::{shipped}" if shipped else str(Path(base).resolve())),
        checkpoint=repr(str(own.resolve()) if own.is_file() else checkpoint),
        training=training,
        held_out=held_out or "training",
        classes=tuple(names),
        iterations=max(1000, 12 * images // _BATCH_SIZE),
        batch_size=_BATCH_SIZE,
        parts=f"{kind}roi_head=dict(bbox_head=heads{masks})",
        boxes=_BOXES if from_boxes else "",
        validation=_VALIDATION if held_out else _NO_VALIDATION,
        best=repr(f"coco/{'segm' if has_masks else 'bbox'}_mAP" if held_out else None),
    )
    with atomic_write(config) as file:
        file.write(text.encode())


def _find_splits(data: Path) -> tuple[_Split, _Split | None]:
    if data.is_file():
        return _read_split(data), None
    if not data.is_dir():
        raise FileNotFoundError(f"no COCO json or folder at {data}")
    found = sorted(path for pattern in ("*.json", "*/*.json") for path in data.glob(pattern))
    found = [path for path in found if path.name.startswith("instances")] or found  # COCO also has captions
    training = [path for path in found if "train" in str(path.relative_to(data))] or found
    if len(training) != 1:
        listed = ", ".join(str(path.relative_to(data)) for path in training) or "none"
        raise ValueError(f"{data} must have one json with 'train' in its path, but has {listed}: give the json itself")
    others = [path for kind in ("val", "test") for path in found if kind in str(path.relative_to(data))]
    held_out = next((path for path in others if path not in training), None)
    return _read_split(training[0]), _read_split(held_out) if held_out else None


def _read_split(path: Path) -> _Split:
    """Read a json, and find the folder of its images beside it or beside its folder."""
    content = read_coco(str(path))
    if not content["images"]:
        raise ValueError(f"{path} lists no images")
    name, file_name = path.stem.removeprefix("instances_"), content["images"][0]["file_name"]
    folders = [
        base / each for base in (path.parent, path.parent.parent) for each in ("", "images", name, f"images/{name}")
    ]
    folder = next((folder for folder in folders if (folder / file_name).is_file()), None)
    if folder is None:
        raise FileNotFoundError(f"{file_name} of {path} is not in its folder, images/, {name}/ or images/{name}/")
    fields: dict[int, int] = {}
    with contextlib.suppress(*BROKEN_TIFF), (folder / file_name).open("rb") as file:
        fields = read_tiff_fields(file)
    bands, bits = fields.get(BANDS, 1), fields.get(BITS, 1)
    if bands not in (1, 3, 4) or bits > 8:
        raise ValueError(f"{file_name} has {bands} bands of {bits} bits: write a config as in docs/bands.md")
    return _Split(path, folder, content)
