from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(
    untrained: Callable[[str], tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str]]:
    """Config and checkpoint of a segmentor and of a detector; sure of nothing, this reports twenty boxes an image."""
    config, checkpoint = untrained("mask-rcnn_xcit-n12-p16_shapes")
    few = tmp_path_factory.mktemp("config") / "few.py"
    few.write_text(
        f"_base_ = {str(config)!r}\n"
        "model = dict(test_cfg=dict(rpn=dict(max_per_img=100), rcnn=dict(score_thr=0.0, max_per_img=20)))"
    )
    seg = untrained("fpn_xcit-n12-p16_shapes")
    return dict(seg=(str(seg[0]), str(seg[1])), det=(str(few), str(checkpoint)))
