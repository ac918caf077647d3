"""Pixels without data, by the mask of a user, change no prediction."""

import numpy as np
import pytest
from helpers.small_models import build, mask_rcnn, semantic_fpn, synthetic_photo, upernet

from xcit_mm import Predictor
from xcit_mm.prediction import Prediction
from xcit_mm.prediction.preprocessing import Preprocessing

INSIDE = slice(96, 416), slice(64, 384)
# Without a positional encoding, which depends on the size of the whole image.
NO_CODE = dict(use_pos=False, norm_cfg=dict(type="BN"))


def predictor_of(recipe, **options) -> Predictor:
    cfg = recipe()
    cfg.model.backbone.update(NO_CODE)
    if recipe is mask_rcnn:
        cfg.model.test_cfg.rcnn.max_per_img = 10
    cfg.test_dataloader.dataset.pipeline[1].scale = (416, 416)  # nothing is enlarged
    return Predictor(build(cfg), cfg, **options)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return synthetic_photo(416, 416)


@pytest.fixture(scope="module")
def valid() -> np.ndarray:
    mask = np.zeros((416, 416), bool)
    mask[INSIDE] = True
    return mask


def outcome(prediction: Prediction) -> np.ndarray:
    if prediction.segmentation is not None:
        return prediction.segmentation
    return np.column_stack([prediction.boxes, prediction.scores, prediction.labels])


@pytest.mark.parametrize(("recipe", "whole"), [(upernet, False), (mask_rcnn, True)])
def test_what_stands_in_pixels_without_data_changes_nothing(recipe, whole, photo, valid):
    options = dict(whole=True, scale=1) if whole else {}
    predictor = predictor_of(recipe, batch_size=2, **options)
    black = np.where(valid[..., None], photo, 0)
    expected, of_black = predictor([photo, black], [valid, valid])
    np.testing.assert_allclose(outcome(expected), outcome(of_black), rtol=1e-4, atol=1e-2)
    without_gaps = outcome(predictor(photo))
    assert not np.array_equal(without_gaps, outcome(expected))
    assert np.array_equal(outcome(predictor(photo, np.ones_like(valid))), without_gaps)


@pytest.mark.parametrize("recipe", [semantic_fpn, upernet])
def test_the_gaps_of_one_photo_change_no_other_in_its_batch(recipe, photo, valid):
    """Its sides are not multiples of 32, so it is padded."""
    predictor = predictor_of(recipe, batch_size=2)
    photo = photo[:208, :250]
    valid = valid[:208, :250]
    _, other = predictor([photo, photo], [valid, np.ones_like(valid)])
    assert np.array_equal(other.segmentation, predictor(photo).segmentation)


@pytest.mark.parametrize("options", [dict(whole=True), dict(tile=128)])
def test_a_part_without_data_has_masks_of_no_objects(options, photo, valid):
    with predictor_of(mask_rcnn, scale=1, **options).see(photo, np.zeros_like(valid)) as seen:
        assert seen.predict(slice(0, 50), slice(0, 60)).masks.shape == (0, 50, 60)


def test_a_mask_is_resized_and_padded_as_its_image():
    cfg = mask_rcnn()
    pipeline = cfg.test_dataloader.dataset.pipeline
    pipeline[1].scale = (200, 200)
    pipeline.insert(2, dict(type="Pad", size_divisor=32))
    mask = np.zeros((100, 50), bool)
    mask[:30] = True
    sample = Preprocessing(cfg)(np.full((100, 50, 3), 9, np.uint8), mask)
    assert sample["valid"].shape == sample["inputs"].shape[1:] == (224, 128)
    expected = np.zeros((224, 128), bool)
    expected[:60, :100] = True
    assert np.array_equal(sample["valid"], expected)


@pytest.mark.parametrize("options", [{}, dict(whole=True, scale=1)])
def test_a_nan_is_refused_since_attention_spreads_it_over_the_map(options):
    cfg = semantic_fpn(backbone=dict(in_channels=4), data_preprocessor=dict(mean=None, std=None))
    cfg.test_dataloader.dataset.pipeline[0] = dict(type="LoadRasterFromFile")
    image = np.zeros((64, 64, 4), np.float32)
    image[5, 5, 2] = np.nan
    with pytest.raises(ValueError, match=r"^image of \(64, 64, 4\) with NaN or infinity: replace"):
        Predictor(build(cfg), cfg, **options)(image)


@pytest.mark.parametrize("options", [{}, dict(whole=True, scale=1)])
def test_masks_that_do_not_fit_are_refused(options, photo, valid):
    predictor = predictor_of(semantic_fpn, **options)
    with pytest.raises(ValueError, match="shorter"):
        predictor([photo, photo], [valid])
    with pytest.raises(ValueError, match=r"mask of bool, \(9, 9\), for an image of \(416, 416\)"):
        predictor(photo, np.ones((9, 9), bool))
    with pytest.raises(ValueError, match=r"mask of uint8, .*: give bool"):
        predictor(photo, np.where(valid, 255, 0).astype(np.uint8))
