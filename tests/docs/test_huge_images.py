"""The pipelines of docs/huge-images.md for training on large images return crops in which objects keep their size."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine import dump
from mmengine.config import Config
from mmengine.registry import init_default_scope
from pages import blocks
from paths import CONFIGS, ROOT

SIDE, SPACING, OBJECT = 1600, 160, 80  # pixels
CLASSES = ("building", "car")
DETECTION, SEGMENTATION = (code for _, code in blocks(ROOT / "docs" / "huge-images.md") if "train_pipeline = [" in code)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A folder with an image of 1600x1600, a json of 100 square objects in it and a segmentation map."""
    root = tmp_path_factory.mktemp("large")
    labels = np.ones((SIDE, SIDE), np.uint8)
    annotations = []
    for left, top in np.ndindex(SIDE // SPACING, SIDE // SPACING):
        left, top = SPACING * left + 20, SPACING * top + 20
        labels[top : top + OBJECT, left : left + OBJECT] = 2
        right, bottom = left + OBJECT, top + OBJECT
        annotation = dict(id=len(annotations) + 1, image_id=0, category_id=1 + len(annotations) % 2, iscrowd=0)
        annotation.update(bbox=[left, top, OBJECT, OBJECT], area=OBJECT**2)
        annotations.append({**annotation, "segmentation": [[left, top, right, top, right, bottom, left, bottom]]})
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, start=1)]
    images = [dict(id=0, file_name="large.png", height=SIDE, width=SIDE)]
    dump(dict(images=images, annotations=annotations, categories=categories), str(root / "large.json"))
    for folder in ("images", "maps"):
        (root / folder).mkdir()
        cv2.imwrite(str(root / folder / "large.png"), labels)
    return root


def extended(config: str, code: str, folder: Path) -> Config:
    """Return a shipped config with the code of the page."""
    path = folder / "my_config.py"
    path.write_text(f"_base_ = {str(CONFIGS / config)!r}\n{code}")
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    return cfg


def test_a_detector_trains_on_crops_whose_objects_keep_their_size(large, tmp_path):
    from mmdet.datasets import CocoDataset

    cfg = extended("mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py", DETECTION, tmp_path)
    data = CocoDataset(
        ann_file=str(large / "large.json"),
        data_prefix=dict(img=str(large / "images")),
        metainfo=dict(classes=CLASSES),
        pipeline=cfg.train_dataloader.dataset.pipeline,
    )
    sizes = set()
    for _ in range(8):
        sample = data[0]
        _, height, width = sample["inputs"].shape
        assert height == width
        sizes.add(height)
        truth = sample["data_samples"].gt_instances
        assert len(truth.masks) == len(truth.bboxes) == len(truth.labels) > 9
        assert truth.bboxes.tensor.max() <= height
        longest = (truth.bboxes.tensor[:, 2:] - truth.bboxes.tensor[:, :2]).max()
        assert 63 < longest < 97  # pixels; in an image resized to 1333x800, up to 40
    assert sizes <= {640, 800, 960} and len(sizes) > 1


def test_a_segmentor_trains_on_crops_of_the_size_of_tiles(large, tmp_path):
    from mmseg.datasets import BaseSegDataset

    cfg = extended("semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py", SEGMENTATION, tmp_path)
    data = BaseSegDataset(
        data_prefix=dict(img_path=str(large / "images"), seg_map_path=str(large / "maps")),
        img_suffix=".png",
        metainfo=dict(classes=CLASSES),
        reduce_zero_label=True,
        pipeline=cfg.train_dataloader.dataset.pipeline,
    )
    sample = data[0]
    assert sample["inputs"].shape == (3, 512, 512)
    assert sample["data_samples"].gt_sem_seg.shape == (512, 512)
    assert cfg.crop_size == (512, 512) == cfg.model.data_preprocessor.size
