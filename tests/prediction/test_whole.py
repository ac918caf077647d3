"""A whole image by bands and windows has the prediction of the whole image in memory."""

from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.small_models import build, mask_rcnn, semantic_fpn, synthetic_photo, upernet

from xcit_mm import Predictor
from xcit_mm.models import large
from xcit_mm.prediction.whole import check_whole


@pytest.fixture(autouse=True)
def short_bands(monkeypatch):
    """Bands of 8 rows of tokens."""
    monkeypatch.setattr(large, "CPU_TOKENS", 1)


@cache
def predictor_of(recipe, scale: int = 128, **options) -> Predictor:
    """Of tiles of 128 pixels, which the test pipeline makes `scale` pixels."""
    cfg = recipe()
    if recipe is mask_rcnn:
        cfg.model.test_cfg.rcnn.max_per_img = 10
    cfg.test_dataloader.dataset.pipeline[1].scale = (scale, scale)
    return Predictor(build(cfg), cfg, **dict(tile=128, whole=True) | options)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return synthetic_photo(450, 410)


def test_a_map_is_that_of_the_image_in_memory(photo):
    """But where the two best classes are equal to rounding."""
    valid = np.ones((450, 410), bool)
    valid[:200, :90] = False
    valid[400:] = False
    predictor = predictor_of(semantic_fpn)
    model = predictor.model
    batch = {name: [value] for name, value in predictor.preprocess(photo, resizes=False).items()}
    inputs = model.data_preprocessor(batch, False)["inputs"][:, :, :450, :410]
    inputs = F.pad(inputs, (0, -410 % 32, 0, -450 % 32))
    with torch.inference_mode(), model.backbone.valid([torch.from_numpy(valid)]):
        metas = [dict(img_shape=inputs.shape[2:], pad_shape=inputs.shape[2:])]
        logits = model.encode_decode(inputs, metas)[0, :, :450, :410]
    labels = predictor(photo, valid).segmentation
    best = logits.topk(2, dim=0).values
    is_tie = (best[0] - best[1] < 1e-4 * logits.abs().max()).numpy()
    assert len(np.unique(labels)) > 2 and is_tie.mean() < 0.01
    assert np.array_equal(labels[~is_tie], logits.argmax(dim=0).numpy()[~is_tie])


@pytest.mark.parametrize("recipe", [semantic_fpn, mask_rcnn])
def test_the_scale_is_that_of_a_tile_and_results_are_in_pixels_of_the_photo(recipe, photo):
    """A tile of 128 pixels becomes 192."""
    prediction = predictor_of(recipe, 192)(photo)
    of_resized = predictor_of(recipe, 192, tile=192)(cv2.resize(photo, (615, 675)))
    if recipe is semantic_fpn:
        rows = ((np.arange(450) + 0.5) * 1.5).astype(int)
        columns = ((np.arange(410) + 0.5) * 1.5).astype(int)
        assert np.array_equal(prediction.segmentation, of_resized.segmentation[rows][:, columns])
        return
    assert len(prediction) > 5
    np.testing.assert_allclose(prediction.boxes, of_resized.boxes / 1.5, atol=1e-3)
    assert prediction.masks.shape[1:] == (450, 410)
    areas = prediction.masks.sum(axis=(1, 2))
    difference = np.abs(areas - of_resized.masks.sum(axis=(1, 2)) / 1.5**2)
    assert difference.mean() < 0.02 * areas.mean()  # pixels along the edges


def test_a_head_that_sees_windows_is_named(capsys):
    assert predictor_of(upernet, 160, tile=None).tile == 160  # the side of the tested images
    line = "UPerHead pools, attends or norms over a window, not the image\n"
    assert line in capsys.readouterr().err
    check_whole(build(semantic_fpn()))
    assert capsys.readouterr().err == ""


def test_networks_that_see_whole_images_or_cut_them_are_refused():
    predictor = predictor_of(semantic_fpn)
    model = SimpleNamespace(backbone=predictor.model.backbone, test_cfg=dict(mode="slide"))
    with pytest.raises(ValueError, match=r"mode='slide' .* set mode='whole'"):
        check_whole(model)
    cfg = semantic_fpn()
    cfg.test_dataloader.dataset.pipeline[1].update(scale=(128, 64), keep_ratio=False)
    with pytest.raises(ValueError, match="stretches 128 x 128 pixels: set keep_ratio"):
        Predictor(predictor.model, cfg, tile=128, whole=True)(synthetic_photo(64, 64))
