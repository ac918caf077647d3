"""The configs that the pages show pass the doctor, load their data and keep published recipes."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from make_shapes import write_dataset
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, MODELS, init_default_scope

from xcit_mm.checks.doctor import diagnose
from xcit_mm.utils.configs import read_config


def codes(page: str, part: str) -> list[str]:
    """Return the code of a page that has a part."""
    return [code for _, code in blocks(ROOT / "docs" / page) if part in code]


DETECTOR, SEGMENTOR = codes("backbone.md", '_base_ = "mm')
(BANDS,) = codes("bands.md", "train_pipeline = [")
CROPS, TILES = codes("huge-images.md", "train_pipeline = [")


def written(folder: Path, code: str, base: str = "") -> str:
    """Write a config, on a shipped config if a base is given."""
    path = folder / "my_config.py"
    path.write_text(f"_base_ = {str(CONFIGS / base)!r}\n{code}" if base else code)
    return str(path)


@pytest.mark.parametrize(
    "code, base",
    [
        pytest.param(DETECTOR, "xcit_amp-ms-crop-3x_coco", id="detector"),
        pytest.param(SEGMENTOR, "xcit_80k_ade20k-512x512", id="segmentor"),
    ],
)
def test_a_backbone_in_a_library_s_config_trains_with_the_published_optimizer(code, base, tmp_path):
    without_download = ["--cfg-options", "model.backbone.init_cfg=None"]
    findings = diagnose(written(tmp_path, code), without_download)
    # Of the optimizer and the model; the data sets do not exist.
    codes = {"D205", "D602", "D603"}
    problems = [f for f in findings if f.code in codes or str(f).startswith("FAIL  ")]
    assert [str(finding) for finding in problems] == []
    shown = Config.fromfile(tmp_path / "my_config.py").optim_wrapper
    published = Config.fromfile(CONFIGS / "_base_" / f"{base}.py").optim_wrapper
    published.optimizer.pop("betas")  # AdamW's default
    assert shown.optimizer == published.optimizer
    assert shown.paramwise_cfg == published.paramwise_cfg


@pytest.mark.parametrize("split, folder", [("train", "training"), ("val", "validation")])
def test_a_model_of_four_bands_gets_four_normalised_bands(split, folder, tmp_path):
    pytest.importorskip("rasterio")
    write_dataset(tmp_path / "data", train=1, val=1, size=96, rasters=True)
    cfg = read_config(written(tmp_path, BANDS))
    dataset = cfg[f"{split}_dataloader"].dataset
    dataset.data_root = str(tmp_path / "data")
    dataset.data_prefix = dict(img_path=f"rasters/{folder}", seg_map_path=f"annotations/{folder}")
    sample = DATASETS.build(dataset)[0]
    assert sample["inputs"].dtype == torch.float32
    cfg.model.backbone.init_cfg = None  # no download
    model = MODELS.build(cfg.model)
    batch = dict(inputs=[sample["inputs"]], data_samples=[sample["data_samples"]])
    inputs = model.data_preprocessor(batch, split == "train")["inputs"]
    assert inputs.shape[1] == model.backbone.patch_embed.proj[0][0].in_channels == 4


def large_image(folder: Path) -> str:
    """Write an image of 1600x1600 pixels, which is also a map of two classes."""
    path = str(folder / "large.png")
    board = np.indices((20, 20)).sum(axis=0) % 2 + 1
    cv2.imwrite(path, np.kron(board, np.ones((80, 80))).astype(np.uint8))
    return path


def test_a_detector_trains_on_crops_of_a_large_image_whose_objects_keep_their_size(tmp_path):
    base = "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
    cfg = Config.fromfile(written(tmp_path, CROPS, base))
    init_default_scope("mmdet")
    objects = []
    for left, top in 160 * np.argwhere(np.ones((10, 10))) + 20:
        right, bottom = left + 80, top + 80
        polygon = [left, top, right, top, right, bottom, left, bottom]
        shape = dict(bbox=[left, top, right, bottom], mask=[polygon])
        objects.append(dict(shape, bbox_label=0, ignore_flag=0))
    image = dict(img_path=large_image(tmp_path), img_id=0, height=1600, width=1600)
    sizes = set()
    for _ in range(8):
        sample = Compose(cfg.train_dataloader.dataset.pipeline)(dict(image, instances=objects))
        _, height, width = sample["inputs"].shape
        sizes.add(height)
        truth = sample["data_samples"].gt_instances
        assert height == width and len(truth.masks) == len(truth.bboxes) == len(truth.labels) > 9
        longest = (truth.bboxes.tensor[:, 2:] - truth.bboxes.tensor[:, :2]).max()
        assert 63 < longest < 97  # pixels; in an image resized to 1333x800, up to 40
    assert sizes <= {640, 800, 960} and len(sizes) > 1


def test_a_segmentor_trains_on_crops_of_the_size_of_tiles(tmp_path):
    base = "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
    cfg = Config.fromfile(written(tmp_path, TILES, base))
    init_default_scope("mmseg")
    path = large_image(tmp_path)
    image = dict(img_path=path, seg_map_path=path, seg_fields=[])
    labels = dict(label_map=None, reduce_zero_label=True)
    sample = Compose(cfg.train_dataloader.dataset.pipeline)(image | labels)
    assert sample["inputs"].shape == (3, 512, 512)
    assert sample["data_samples"].gt_sem_seg.shape == (512, 512)
    assert cfg.crop_size == (512, 512) == cfg.model.data_preprocessor.size
