"""The map of an image whose sides are not multiples of 32 lies where it belongs, in every path."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.small_models import synthetic_photo

from xcit_mm import Predictor, read_config

SEG, _ = SCORES
SIDE = 145


@pytest.fixture
def predictor(models) -> Predictor:
    return Predictor.from_pretrained(*models["seg"], device="cpu")


def padded_map(predictor: Any, photo: np.ndarray) -> np.ndarray:
    """Return the map of a photo, cut out of the map of its normalised pixels padded by zeros."""
    model = predictor.model
    pixels = torch.from_numpy(np.ascontiguousarray(photo[..., ::-1].transpose(2, 0, 1))).float()
    inputs = (pixels - model.data_preprocessor.mean) / model.data_preprocessor.std
    height, width = photo.shape[:2]
    padded = F.pad(inputs[None], (0, -width % 32, 0, -height % 32))
    with torch.no_grad():
        logits = model.encode_decode(padded, [dict(img_shape=tuple(padded.shape[2:]))])
    return logits[0, :, :height, :width].argmax(dim=0).numpy()


@pytest.mark.parametrize("size", [(145, 145), (33, 150)])
def test_a_predicted_map_is_cut_out_of_that_of_the_padded_image(size, predictor):
    photo = synthetic_photo(*size)
    expected = padded_map(predictor, photo)
    assert len(np.unique(expected)) > 2
    assert np.array_equal(predictor(photo).segmentation, expected)
    for prediction in predictor([photo, photo[::-1].copy()])[:1]:
        assert np.array_equal(prediction.segmentation, expected)


@pytest.fixture
def odd_photos(tmp_path, predictor) -> Path:
    """Two photos of odd sides, whose labels are their maps."""
    for number in range(2):
        photo = synthetic_photo(SIDE - number, SIDE)
        for folder, pixels in (("images", photo), ("annotations", padded_map(predictor, photo))):
            path = tmp_path / folder / "validation" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), pixels)
    return tmp_path


def test_a_test_scores_the_map_where_it_lies(odd_photos, models, call):
    """The labels are the maps that are expected, so that the mIoU is 100."""
    dataset = "test_dataloader.dataset"
    options = cfg_options(SEG, odd_photos, 1)
    options += [f"{dataset}.img_suffix=.png", f"{dataset}.reduce_zero_label=False"]
    code, printed, _ = call("test", *models["seg"], "--skip-checks", *options)
    assert code == 0 and "mIoU  100\n" in printed


def test_a_model_that_does_not_pad_is_named(capsys, predictor):
    assert "a map is misplaced" not in capsys.readouterr().err
    predictor.model.data_preprocessor.test_cfg = None
    Predictor(predictor.model, predictor.cfg)
    assert "test_cfg=dict(size_divisor=32)" in capsys.readouterr().err


def test_a_finetuning_pads_whatever_its_base_does(maps, models, start):
    """mmseg takes a size or a divisor, not both."""
    for test_cfg, divisor in ((dict(size=(96, 96)), 32), (dict(size_divisor=48), 96)):
        base = read_config(models["seg"][0])
        base.model.data_preprocessor.test_cfg = test_cfg
        base.data_preprocessor = base.model.pop("data_preprocessor")  # mmseg takes it there too
        base.dump("base.py")
        cfg = start("finetune", "base.py", maps, "--config", f"{divisor}.py", "--skip-checks")
        padding = cfg.model.data_preprocessor.test_cfg
        assert (padding.get("size"), padding.size_divisor) == (None, divisor)
        assert cfg.model.data_preprocessor.mean == base.data_preprocessor.mean


def test_every_shipped_segmentor_pads():
    for path in [*DEMO.parent.glob("[!_]*/*ade20k*.py"), *DEMO.glob("fpn_*.py")]:
        assert read_config(path).model.data_preprocessor.test_cfg.size_divisor == 32, path.name
