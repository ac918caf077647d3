"""Models for other numbers of bands than three train and predict, from rasters to scores."""

import json

import cv2
import numpy as np
import pytest
import torch
from helpers.configs import read_config_file
from helpers.demo_runs import DEMO, cfg_options
from helpers.processes import run_tool
from helpers.small_models import narrow_model
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from xcit_mm.prediction.drawing import as_photo

FOUR = DEMO / "fpn_xcit-n12-p16_shapes-4band.py"
DRAWN = [f"default_hooks.visualization.{option}" for option in ("draw=True", "interval=1")]


@pytest.mark.slow
def test_the_demo_of_four_bands_trains_and_is_scored_and_drawn(tmp_path):
    pytest.importorskip("rasterio")
    from make_shapes import write_dataset

    write_dataset(tmp_path / "shapes", train=4, val=2, size=64, rasters=True)
    options = cfg_options(FOUR.stem, tmp_path / "shapes", 2)
    run = run_tool("train", FOUR, "--work-dir", tmp_path, *options, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    arguments = (tmp_path / "iter_2.pth", "--work-dir", tmp_path / "test", *options)
    run = run_tool("test", FOUR, *arguments, *DRAWN, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    (scores,) = (tmp_path / "test").glob("*/2*.json")
    assert 0 <= json.loads(scores.read_text())["mIoU"] <= 100
    assert len(list(tmp_path.rglob("vis_image/*.png"))) == 2


@pytest.mark.parametrize("bands", [1, 13])
def test_a_segmentor_learns_from_every_band(bands):
    cfg = read_config_file(FOUR)
    narrow_model(cfg.model)
    cfg.model.backbone.in_channels = bands
    init_default_scope("mmseg")
    torch.manual_seed(0)
    size = dict(img_shape=(96, 96), ori_shape=(96, 96), pad_shape=(96, 96))
    truth = PixelData(data=torch.arange(96).remainder(5).expand(1, 96, 96))
    samples = [SegDataSample(metainfo=size, gt_sem_seg=truth) for _ in range(2)]
    batch = dict(inputs=list(torch.randn(2, bands, 96, 96)), data_samples=samples)
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).train()
    stem = model.backbone.patch_embed.proj[0][0].weight
    initial = stem.detach().clone()
    losses = model.train_step(batch, build_optim_wrapper(model, cfg.optim_wrapper))
    assert losses["loss"].isfinite()
    assert (stem != initial).flatten(2).any(2).all(0).all(), "a band did not change the stem"
    for sample in model.eval().test_step(batch):
        assert sample.pred_sem_seg.data.shape == (1, 96, 96)


def test_a_prediction_of_four_bands_is_a_map_and_drawn_over_the_first_three(call, tmp_path):
    raster_files = pytest.importorskip("helpers.raster_files")  # needs rasterio
    cfg = read_config_file(FOUR)
    narrow_model(cfg.model)
    init_default_scope("mmseg")
    torch.manual_seed(0)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / "four.pth")
    cfg.dump(tmp_path / "four.py")
    values = raster_files.noise(4, 96, 64, high=60000, dtype=np.uint16)
    raster = raster_files.save(tmp_path / "four.tif", values)
    out = tmp_path / "out"
    model = (tmp_path / "four.py", raster, "--checkpoint", tmp_path / "four.pth", "--out", out)
    code, printed, errors = call("predict", *model)
    assert code == 0 and "1 predicted: " in printed
    assert "not drawn" not in errors
    assert [path.name for path in (out / "labels").iterdir()] == ["four.tif.png"]
    drawing = cv2.imread(str(out / "visualizations" / "four.tif.jpg"))
    assert drawing.shape[0] == 96 and drawing.shape[1] > 64


@pytest.mark.parametrize(
    "image, shown",
    [
        (np.uint8([[10, 20]]), [[10] * 3, [20] * 3]),
        (np.uint8([[[10, 20, 30]]]), [[10, 20, 30]]),  # a photo, BGR
        (np.uint8([[[10, 20, 30, 40]]]), [[30, 20, 10]]),
        (np.float32([[[0.5], [2.5]]]), [[0] * 3, [255] * 3]),
        (np.uint16([[[700, 700, 700, 1]]]), [[0] * 3]),
    ],
)
def test_the_first_three_bands_are_drawn_as_a_photo(image, shown):
    assert as_photo(image)[0].tolist() == shown
