"""Properties of a config do not depend on the place of its preprocessor or of the normalisation."""

import pytest
from doctor_data import SHAPES

from configs import read_config_file
from xcit_mm.checks.model import build_model
from xcit_mm.checks.preflight import check_backbone
from xcit_mm.utils.configs import channel_order, image_side, normalisation


@pytest.mark.parametrize("swaps, to_rgb, order", [(True, None, "RGB"), (False, True, "RGB"), (True, True, "BGR")])
def test_normalize_step_counts_like_the_preprocessor(swaps, to_rgb, order):
    cfg = read_config_file(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps)
    assert normalisation(cfg) == (cfg.model.data_preprocessor.mean, cfg.model.data_preprocessor.std)
    if to_rgb:
        cfg.model.data_preprocessor.update(mean=None, std=None)
        step = dict(type="Normalize", mean=[1.5], std=[2.5], to_rgb=to_rgb)
        cfg.test_dataloader.dataset.pipeline.insert(1, step)
        assert normalisation(cfg) == ([1.5], [2.5])
    assert channel_order(cfg) == order


def test_preprocessor_beside_the_model_is_used():
    """mmengine's Runner uses it, and mmpretrain's configs have it there."""
    inside, beside = read_config_file(SHAPES), read_config_file(SHAPES)
    inside.model.data_preprocessor.size = (96, 128)
    beside.model.pop("data_preprocessor")
    beside.data_preprocessor = inside.model.data_preprocessor
    for function in (normalisation, channel_order, image_side):
        assert function(beside) == function(inside)
    assert normalisation(beside)[0] == inside.model.data_preprocessor.mean
    assert type(build_model(beside).data_preprocessor).__name__ == "SegDataPreProcessor"
    beside.data_preprocessor.mean = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 2 values, "):
        check_backbone(beside)
