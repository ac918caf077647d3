"""The masks that a test scores take no memory of the photo's size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.demo_runs import SCORES, cfg_options
from mmdet.evaluation import CocoMetric
from torch import nn

from xcit_mm import read_config
from xcit_mm.models.build import load_model
from xcit_mm.prediction.masks import return_crops

_, DET = SCORES


@pytest.fixture
def scored(monkeypatch) -> list[Any]:
    """The masks that mmdet's metric has been given, of each photo."""
    given = []
    process = CocoMetric.process

    def watched(self: CocoMetric, batch: dict, samples: list[dict]) -> None:
        given.extend(sample["pred_instances"]["masks"] for sample in samples)
        process(self, batch, samples)

    monkeypatch.setattr(CocoMetric, "process", watched)
    return given


def test_masks_are_scored_without_tensors_of_the_photos_size(
    scored, models, shapes, call, monkeypatch
):
    """100 objects in 8000 x 6000 pixels would take 4.8 GB. The scores are mmdet's."""
    monkeypatch.setattr("sys.argv", ["xcit-mm"])
    options = (*models["det"], *cfg_options(DET, shapes, 1), "test_evaluator.metric=segm")
    call("tool", "mmdet/test.py", *options, "--work-dir", "theirs")
    assert all(isinstance(masks, torch.Tensor) for masks in scored)
    scored.clear()
    assert call("test", *options, "--work-dir", "ours")[0] == 0
    encoded = [mask for masks in scored for mask in masks]
    assert len(encoded) > 5 and not any(isinstance(mask, torch.Tensor) for mask in encoded)
    files = [next(Path(folder).glob("*/2*.json")) for folder in ("theirs", "ours")]
    theirs, ours = (json.loads(file.read_text()) for file in files)
    assert theirs["coco/segm_mAP"] == pytest.approx(ours["coco/segm_mAP"], abs=1e-3)


def test_masks_that_are_drawn_stay_masks(scored, models, shapes, call):
    options = (*cfg_options(DET, shapes, 1), "test_evaluator.metric=segm")
    drawing = "default_hooks.visualization.draw=True"
    assert call("test", *models["det"], "--work-dir", "ours", *options, drawing)[0] == 0
    assert scored and all(isinstance(masks, torch.Tensor) for masks in scored)


def test_masks_are_encoded_inside_of_a_wrapper_too(models):
    """DistributedDataParallel has the model as its `module`."""
    model = load_model(read_config(models["det"][0]), models["det"][1])
    wrapper = nn.ModuleDict(dict(module=model))
    return_crops(wrapper, encodes=True)
    assert "predict_by_feat" in vars(model.roi_head.mask_head)
