"""Data of the tests of training."""

import json
from pathlib import Path

import cv2
import pytest


@pytest.fixture(scope="session")
def photos(shapes, tmp_path_factory) -> Path:
    """A copy of the shapes with wide and high images, which AspectRatioBatchSampler separates."""
    root = tmp_path_factory.mktemp("photos")
    (root / "annotations").mkdir()
    for split in ("training", "validation"):
        (root / "images" / split).mkdir(parents=True)
        coco = json.loads((shapes / "annotations" / f"instances_{split}.json").read_text())
        for number, image in enumerate(coco["images"]):
            pixels = cv2.imread(str(shapes / "images" / split / image["file_name"]))
            below, right = (32, 0) if number % 2 else (0, 32)
            image["height"] += below
            image["width"] += right
            padded = cv2.copyMakeBorder(pixels, 0, below, 0, right, cv2.BORDER_CONSTANT)
            cv2.imwrite(str(root / "images" / split / image["file_name"]), padded)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco))
    return root
