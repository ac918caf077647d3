"""The demo recipes reach their scores on real photos, in 7 and 12 minutes on 2 cores."""

import json
from pathlib import Path

import pytest
from paths import ROOT, SHARED

DATA = SHARED / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the photos of the demo configs are missing"),
]


def train(tool, tmp_path: Path, config: str) -> dict[str, float]:
    """Train a demo config in full and return its last validation scores."""
    (tmp_path / "data").symlink_to(DATA)
    run = tool("train", ROOT / "configs" / "demo" / f"{config}.py", "--work-dir", tmp_path / "work", timeout=3600)
    assert run.returncode == 0, run.stderr[-2000:]
    log = next((tmp_path / "work").glob("2*/vis_data/scalars.json"))
    return json.loads(log.read_text().splitlines()[-1])


def test_semantic_fpn_reaches_its_score_on_camvid(tool, tmp_path):
    assert train(tool, tmp_path, "fpn_xcit-n12-p16_camvid")["mIoU"] >= 34


def test_mask_rcnn_reaches_its_score_on_nuts(tool, tmp_path):
    scores = train(tool, tmp_path, "mask-rcnn_xcit-n12-p16_nuts")
    assert scores["coco/segm_mAP"] >= 0.45
    assert scores["coco/segm_mAP_50"] >= 0.80
