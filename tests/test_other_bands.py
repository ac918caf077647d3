"""Models for other numbers of bands than three train and predict, from rasters to scores."""

import json

import pytest
import torch
from helpers.demo_runs import DEMO, cfg_options
from helpers.processes import run_tool
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

FOUR = DEMO / "fpn_xcit-n12-p16_shapes-4band.py"
DETECTOR = DEMO / "mask-rcnn_xcit-n12-p16_shapes.py"
TRUNK = dict(
    arch=dict(embed_dim=16, depth=4, num_heads=2, eta=1.0),
    out_indices=(0, 1, 2, 3),
    norm_cfg=dict(type="BN"),
)


@pytest.mark.slow
def test_the_demo_of_four_bands_trains_and_is_scored_and_drawn(tmp_path):
    pytest.importorskip("rasterio")
    from make_shapes import write_dataset

    write_dataset(tmp_path / "shapes", train=4, val=2, size=64, rasters=True)
    options = cfg_options(FOUR.stem, tmp_path / "shapes", 2)
    run = run_tool("train", FOUR, "--work-dir", tmp_path, *options, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    arguments = (tmp_path / "iter_2.pth", "--work-dir", tmp_path / "test", *options)
    run = run_tool("test", FOUR, *arguments, "--tta", "--show-dir", "shown", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    (scores,) = (tmp_path / "test").glob("*/2*.json")
    assert 0 <= json.loads(scores.read_text())["mIoU"] <= 100
    assert len(list(tmp_path.rglob("shown/**/*.png"))) == 2


def assert_trains_and_predicts(cfg: Config, bands: int, samples: list) -> None:
    cfg.model.backbone.update(TRUNK, in_channels=bands)
    cfg.model.neck.in_channels = [16] * 4
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    batch = dict(inputs=list(torch.randn(2, bands, 96, 96)), data_samples=samples)
    model = MODELS.build(cfg.model).train()
    stem = model.backbone.patch_embed.proj[0][0].weight
    initial = stem.detach().clone()
    losses = model.train_step(batch, build_optim_wrapper(model, cfg.optim_wrapper))
    assert losses["loss"].isfinite()
    assert (stem != initial).flatten(2).any(2).all(0).all(), "a band did not change the stem"
    for sample in model.eval().test_step(batch):
        if "pred_instances" in sample:
            assert sample.pred_instances.bboxes.shape[1] == 4
        else:
            assert sample.pred_sem_seg.data.shape == (1, 96, 96)


@pytest.mark.parametrize("bands", [1, 13])
def test_a_segmentor_learns_from_every_band(bands):
    size = dict(img_shape=(96, 96), ori_shape=(96, 96), pad_shape=(96, 96))
    truth = PixelData(data=torch.arange(96).remainder(5).expand(1, 96, 96))
    samples = [SegDataSample(metainfo=size, gt_sem_seg=truth) for _ in range(2)]
    assert_trains_and_predicts(Config.fromfile(FOUR), bands, samples)


def test_a_detector_learns_from_every_band():
    cfg = Config.fromfile(DETECTOR)
    cfg.model.data_preprocessor.update(mean=None, std=None, bgr_to_rgb=False)
    batch = demo_mm_inputs(2, [(4, 96, 96)] * 2, num_classes=4, with_mask=True)
    assert_trains_and_predicts(cfg, 4, batch["data_samples"])
