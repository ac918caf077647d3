"""Correct data sets at the paths of the shipped configs, and the findings of the doctor."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from mmdet.datasets import CocoDataset

from helpers.configs import parse_cfg_options
from helpers.paths import CONFIGS
from xcit_mm import diagnose
from xcit_mm.checks.findings import Finding

MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-t12-p16_fpn_amp-ms-crop-3x_coco.py"
SEMANTIC_FPN = CONFIGS / "semantic_fpn" / "fpn_xcit-t12-p16_8xb2-80k_ade20k-512x512.py"
RETINANET = CONFIGS / "retinanet" / "retinanet_xcit-s12-p16_fpn_1x_coco.py"
SHAPES = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"

COCO = Path("data/coco")
TRAIN_JSON = COCO / "annotations" / "instances_train2017.json"
VAL_JSON = COCO / "annotations" / "instances_val2017.json"
ADE = Path("data/ade/ADEChallengeData2016")
MAPS = ADE / "annotations" / "training"

WIDTH, HEIGHT, SIDE = 64, 48, 20  # pixels of images and of boxes


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((HEIGHT, WIDTH, 3), 99, np.uint8))


def write_map(path: Path, labels: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.resize(np.array(labels, np.uint8), (HEIGHT, WIDTH)))


def write_coco(root: Path) -> None:
    """Write two splits of three images, with one annotation for each of COCO's classes."""
    classes = CocoDataset.METAINFO["classes"]
    categories = [dict(id=2 * i + 1, name=name) for i, name in enumerate(classes)]
    annotations = []
    for number, category in enumerate(categories):
        x, y = 4 + 7 * number % 37, 4 + 5 * number % 21
        polygon = [x, y, x + SIDE, y, x + SIDE, y + SIDE, x, y + SIDE]
        shape = dict(bbox=[x, y, SIDE, SIDE], area=SIDE**2, iscrowd=0, segmentation=[polygon])
        ids = dict(id=number + 1, image_id=number % 3, category_id=category["id"])
        annotations.append(dict(shape, **ids))
    images = [dict(id=i, file_name=f"{i}.jpg", height=HEIGHT, width=WIDTH) for i in range(3)]
    coco = dict(images=images, categories=categories)
    for path, split in ((TRAIN_JSON, "train"), (VAL_JSON, "val")):
        for image in images:
            write_image(root / COCO / f"{split}2017" / image["file_name"])
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(json.dumps(dict(coco, annotations=annotations)))


def write_segmentation_maps(root: Path, labels: list[int]) -> None:
    for split in ("training", "validation"):
        for number in range(3):
            write_image(root / "images" / split / f"{number}.jpg")
            write_map(root / "annotations" / split / f"{number}.png", labels)


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    coco = json.loads(path.read_text())
    change(coco)
    path.write_text(json.dumps(coco))


def edit_annotations(path: Path, change: Callable[[dict], object]) -> None:
    edit_json(path, lambda coco: [change(annotation) for annotation in coco["annotations"]])


def findings(config: Path, *options: str, level: str = "", processes: int = 1) -> list[Finding]:
    """Return the findings of the doctor, of one level or of all levels."""
    changes = parse_cfg_options(options)
    diagnosis = diagnose(config, cfg_options=changes, processes=processes)
    return [finding for finding in diagnosis if level in ("", finding.level)]


def failures(config: Path, *options: str) -> list[Finding]:
    """Return the failures, which must have fixes."""
    failed = findings(config, *options, level="FAIL")
    assert all(finding.fix for finding in failed if finding.code)
    return failed


def assert_named(diagnosis: Sequence[Finding], expected: Sequence[tuple]) -> None:
    """Check that findings have these codes and values: (code, value, ...), each a whole word."""
    texts = "\n".join(map(str, diagnosis))
    assert [finding.code for finding in diagnosis] == [code for code, *_ in expected], texts
    for finding, (_, *values) in zip(diagnosis, expected, strict=True):
        words = [rf"(?<!\w){re.escape(str(value))}(?!\w)" for value in values]
        assert [word for word in words if not re.search(word, finding.text)] == [], finding.text
