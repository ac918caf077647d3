"""The demo recipes reach their scores on real photos, in 7 and 12 minutes on 2 cores."""

import json
import subprocess
import sys

import pytest
from helpers.paths import CONFIGS, ROOT, SHARED

DATA = SHARED / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the photos of the demo configs are missing"),
]


@pytest.mark.parametrize(
    "config, score, reached",
    [
        ("fpn_xcit-n12-p16_camvid", "mIoU", 34),
        ("mask-rcnn_xcit-n12-p16_nuts", "coco/segm_mAP", 0.45),
    ],
)
def test_a_demo_config_reaches_its_score_on_photos(config, score, reached, tmp_path):
    (tmp_path / "data").symlink_to(DATA)
    arguments = [CONFIGS / "demo" / f"{config}.py", "--work-dir", "work"]
    command = [sys.executable, ROOT / "tools" / "train.py", *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3600)
    assert run.returncode == 0, run.stderr[-2000:]
    log = next((tmp_path / "work").glob("2*/vis_data/scalars.json"))
    assert json.loads(log.read_text().splitlines()[-1])[score] >= reached
