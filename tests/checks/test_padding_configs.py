"""`ignore_padding` is refused where a config's padding could be taken for image."""

import pytest
from mmengine.config import Config
from paths import CONFIGS

from xcit_mm.checks.preflight import check_backbone

SEGMENTOR = CONFIGS / "demo" / "fpn_xcit-n12-p16_camvid.py"
DETECTOR = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_nuts.py"


@pytest.mark.parametrize("path", [SEGMENTOR, DETECTOR])
def test_shipped_normalisation_is_fine(path):
    cfg = Config.fromfile(path)
    cfg.model.backbone.ignore_padding = True
    check_backbone(cfg)


@pytest.mark.parametrize(
    "path, options, reason",
    [
        (DETECTOR, {"mean": [0, 0, 0]}, r"mean=\[0, 0, 0\]: pixels of that value become zero"),
        (SEGMENTOR, {"mean": [128.0, 127, 1]}, "give a mean that is not a whole number"),
        (SEGMENTOR, {"mean": None}, "give a mean that is not a whole number"),
        (DETECTOR, {"pad_value": 114}, "pad_value=114 in the data_preprocessor: must be 0"),
        (SEGMENTOR, {"pad_val": 1}, "pad_val=1 in the data_preprocessor: must be 0"),
        (
            DETECTOR,
            {"batch_augments": [dict(type="BatchFixedSizePad", size=(64, 64), img_pad_value=3)]},
            "img_pad_value=3 in the data_preprocessor: must be 0",
        ),
    ],
)
def test_what_would_be_a_guess_is_refused(path, options, reason):
    cfg = Config.fromfile(path)
    cfg.model.backbone.ignore_padding = True
    cfg.model.data_preprocessor.update(options)
    with pytest.raises(ValueError, match=reason):
        check_backbone(cfg)
    cfg.model.backbone.ignore_padding = False
    check_backbone(cfg)
