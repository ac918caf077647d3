"""The configs that docs/backbone.md shows pass the doctor, which names a base's settings that remain."""

import pytest
from mmengine.config import Config
from pages import blocks
from paths import CONFIGS, ROOT

from xcit_mm.checks.doctor import diagnose

DETECTOR, SEGMENTOR = (code for _, code in blocks(ROOT / "docs" / "backbone.md") if code.startswith('_base_ = "mm'))


def findings(text: str, folder) -> dict[str, str]:
    """Return notes and failures on the optimizer and the model, by code. The data sets do not exist."""
    config = folder / "my_config.py"
    config.write_text(text)
    found = diagnose(str(config), ["--cfg-options", "model.backbone.init_cfg=None"])  # no download
    return {
        item.code: str(item)
        for item in found
        if item.code in ("D205", "D602", "D603") or str(item).startswith("FAIL  ")
    }


@pytest.mark.parametrize("text, base", [(DETECTOR, "xcit_amp-ms-crop-3x_coco"), (SEGMENTOR, "xcit_80k_ade20k-512x512")])
def test_a_shown_config_fits_and_trains_with_the_published_optimizer(text, base, tmp_path):
    assert findings(text, tmp_path) == {}
    shown = Config.fromfile(tmp_path / "my_config.py").optim_wrapper
    published = Config.fromfile(CONFIGS / "_base_" / f"{base}.py").optim_wrapper
    published.optimizer.pop("betas")  # AdamW's default
    assert shown.optimizer == published.optimizer
    assert shown.paramwise_cfg == published.paramwise_cfg
