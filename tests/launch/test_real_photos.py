"""Real photos train to the scores of the demo recipes, in 7 and 12 minutes on 2 cores."""

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
def test_a_demo_config_reaches_its_score(config, score, reached, folder):
    (folder / "data").symlink_to(DATA)
    command = [sys.executable, ROOT / "tools" / "train.py", CONFIGS / "demo" / f"{config}.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert run.returncode == 0, run.stderr[-2000:]
    (log,) = (folder / "work_dirs").glob("*/2*/vis_data/scalars.json")
    assert json.loads(log.read_text().splitlines()[-1])[score] >= reached
