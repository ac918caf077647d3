"""The configs that the pages show pass the doctor, load the data that they describe, and keep the
published recipes.
"""

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

DETECTOR, SEGMENTOR = (
    code for _, code in blocks(ROOT / "docs" / "backbone.md") if code.startswith('_base_ = "mm')
)
(BANDS,) = (code for _, code in blocks(ROOT / "docs" / "bands.md") if "train_pipeline = [" in code)
CROPS, TILES = (
    code for _, code in blocks(ROOT / "docs" / "huge-images.md") if "train_pipeline = [" in code
)


def written(folder: Path, code: str, base: str = "") -> str:
    """Write a config, on a shipped config if a base is given."""
    path = folder / "my_config.py"
    path.write_text((f"_base_ = {str(CONFIGS / base)!r}\n" if base else "") + code)
    return str(path)


@pytest.mark.parametrize(
    "text, base", [(DETECTOR, "xcit_amp-ms-crop-3x_coco"), (SEGMENTOR, "xcit_80k_ade20k-512x512")]
)
def test_a_backbone_in_a_library_s_config_trains_with_the_published_optimizer(text, base, tmp_path):
    found = diagnose(
        written(tmp_path, text), ["--cfg-options", "model.backbone.init_cfg=None"]
    )  # no download
    named = {"D205", "D602", "D603"}  # of the optimizer and the model; the data sets do not exist
    assert [
        str(item) for item in found if item.code in named or str(item).startswith("FAIL  ")
    ] == []
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
    cv2.imwrite(
        path, np.kron(np.indices((20, 20)).sum(axis=0) % 2 + 1, np.ones((80, 80))).astype(np.uint8)
    )
    return path


def test_a_detector_trains_on_crops_of_a_large_image_whose_objects_keep_their_size(tmp_path):
    cfg = Config.fromfile(
        written(tmp_path, CROPS, "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py")
    )
    init_default_scope("mmdet")
    sizes, objects = set(), []
    for left, top in 160 * np.argwhere(np.ones((10, 10))) + 20:
        right, bottom = left + 80, top + 80
        polygon = [left, top, right, top, right, bottom, left, bottom]
        objects.append(
            dict(bbox=[left, top, right, bottom], bbox_label=0, ignore_flag=0, mask=[polygon])
        )
    for _ in range(8):
        given = dict(
            img_path=large_image(tmp_path), img_id=0, height=1600, width=1600, instances=objects
        )
        sample = Compose(cfg.train_dataloader.dataset.pipeline)(given)
        _, height, width = sample["inputs"].shape
        sizes.add(height)
        truth = sample["data_samples"].gt_instances
        assert height == width and len(truth.masks) == len(truth.bboxes) == len(truth.labels) > 9
        longest = (truth.bboxes.tensor[:, 2:] - truth.bboxes.tensor[:, :2]).max()
        assert 63 < longest < 97  # pixels; in an image resized to 1333x800, up to 40
    assert sizes <= {640, 800, 960} and len(sizes) > 1


def test_a_segmentor_trains_on_crops_of_the_size_of_tiles(tmp_path):
    cfg = Config.fromfile(
        written(tmp_path, TILES, "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py")
    )
    init_default_scope("mmseg")
    path = large_image(tmp_path)
    given = dict(
        img_path=path, seg_map_path=path, label_map=None, reduce_zero_label=True, seg_fields=[]
    )
    sample = Compose(cfg.train_dataloader.dataset.pipeline)(given)
    assert sample["inputs"].shape == (3, 512, 512)
    assert sample["data_samples"].gt_sem_seg.shape == (512, 512)
    assert cfg.crop_size == (512, 512) == cfg.model.data_preprocessor.size
