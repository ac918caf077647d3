"""The config of docs/bands.md trains on images of four bands."""

import pytest
import torch
from make_shapes import write_dataset
from mmengine.registry import DATASETS, MODELS
from pages import blocks
from paths import ROOT

from xcit_mm.utils.configs import read_config

(CODE,) = (code for _, code in blocks(ROOT / "docs" / "bands.md") if "train_pipeline = [" in code)


@pytest.mark.parametrize("split, folder", [("train", "training"), ("val", "validation")])
def test_the_config_of_the_page_feeds_its_model_four_normalised_bands(split, folder, tmp_path):
    pytest.importorskip("rasterio")
    write_dataset(tmp_path / "data", train=1, val=1, size=96, rasters=True)
    (tmp_path / "my_bands.py").write_text(CODE)
    cfg = read_config(str(tmp_path / "my_bands.py"), [])
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
