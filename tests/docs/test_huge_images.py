"""The pipelines of docs/huge-images.md for training on large images give crops in which objects keep their size."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from make_shapes import write_dataset
from mmengine.config import Config
from mmengine.registry import init_default_scope
from pages import blocks
from paths import CONFIGS, ROOT

COLUMNS, CELL = 10, 160
SIDE = COLUMNS * CELL
PIPELINES = [code for language, code in blocks(ROOT / "docs" / "huge-images.md") if "train_pipeline = [" in code]
COCO = "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
ADE = "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """One image of 1600x1600 with some hundred shapes, its json and its segmentation map."""
    root = tmp_path_factory.mktemp("large")
    write_dataset(root / "shapes", train=COLUMNS**2, val=1, size=CELL)
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    labels = np.zeros((SIDE, SIDE), np.uint8)
    coco = json.loads((root / "shapes" / "annotations" / "instances_training.json").read_text())
    corners = {}
    for number, one in enumerate(coco["images"]):
        top, left = (CELL * part for part in divmod(number, COLUMNS))
        corners[one["id"]] = left, top
        cell = np.s_[top : top + CELL, left : left + CELL]
        image[cell] = cv2.imread(str(root / "shapes" / "images" / "training" / one["file_name"]))
        name = Path(one["file_name"]).with_suffix(".png").name
        labels[cell] = cv2.imread(str(root / "shapes" / "annotations" / "training" / name), cv2.IMREAD_UNCHANGED)
    for one in coco["annotations"]:
        left, top = corners[one["image_id"]]
        one["bbox"] = [one["bbox"][0] + left, one["bbox"][1] + top, *one["bbox"][2:]]
        polygon = np.reshape(one["segmentation"][0], (-1, 2)) + np.array([left, top])
        one["segmentation"] = [polygon.ravel().tolist()]
        one["image_id"] = 0
    coco["images"] = [dict(id=0, file_name="scene.jpg", height=SIDE, width=SIDE)]
    (root / "images").mkdir()
    (root / "maps").mkdir()
    cv2.imwrite(str(root / "images" / "scene.jpg"), image)
    cv2.imwrite(str(root / "maps" / "scene.png"), labels)
    (root / "scene.json").write_text(json.dumps(coco))
    return root


def merged(config: str, code: str, folder: Path) -> Config:
    """A shipped config with what the page adds."""
    path = folder / "my_config.py"
    path.write_text(f"_base_ = {str(CONFIGS / config)!r}\n{code}")
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    return cfg


def test_the_page_shows_one_pipeline_for_detection_and_one_for_segmentation():
    assert [("poly2mask" in code, "PackSegInputs" in code) for code in PIPELINES] == [(True, False), (False, True)]


@pytest.mark.parametrize("config", [COCO, "demo/mask-rcnn_xcit-n12-p16_nuts.py"])
def test_a_detector_trains_on_crops_whose_objects_keep_their_size(config, large, tmp_path):
    from mmdet.datasets import CocoDataset

    cfg = merged(config, PIPELINES[0], tmp_path)
    categories = json.loads((large / "scene.json").read_text())["categories"]
    data = CocoDataset(
        ann_file=str(large / "scene.json"),
        data_prefix=dict(img=str(large / "images")),
        metainfo=dict(classes=tuple(one["name"] for one in categories)),
        pipeline=cfg.train_dataloader.dataset.pipeline,
    )
    sizes, counts = set(), []
    for _ in range(8):
        sample = data[0]
        assert sample["inputs"].shape[1] == sample["inputs"].shape[2]
        sizes.add(sample["inputs"].shape[1])
        truth = sample["data_samples"].gt_instances
        counts.append(len(truth))
        assert len(truth.masks) == len(truth.bboxes) == len(truth.labels)
        assert truth.bboxes.tensor.max() <= sample["inputs"].shape[1]
        longest = (truth.bboxes.tensor[:, 2:] - truth.bboxes.tensor[:, :2]).max()
        assert 40 < longest <= 1.2 * CELL  # those of an image shrunk to 1333x800 would be half as large
    assert sizes <= {640, 800, 960} and len(sizes) > 1
    assert min(counts) > 20


def test_a_segmentor_trains_on_crops_of_the_tile_s_size(large, tmp_path):
    from mmseg.datasets import BaseSegDataset

    cfg = merged(ADE, PIPELINES[1], tmp_path)
    data = BaseSegDataset(
        data_prefix=dict(img_path=str(large / "images"), seg_map_path=str(large / "maps")),
        metainfo=dict(classes=("background", "circle", "square", "triangle", "star")),
        reduce_zero_label=True,
        pipeline=cfg.train_dataloader.dataset.pipeline,
    )
    sample = data[0]
    assert sample["inputs"].shape == (3, 512, 512)
    assert sample["data_samples"].gt_sem_seg.shape == (512, 512)
    assert cfg.crop_size == (512, 512) == cfg.model.data_preprocessor.size
