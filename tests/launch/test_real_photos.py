"""Real photos train to the scores of the demo recipes, in 7 and 12 minutes on 2 cores, and to the
same losses in another layout, bit for bit.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import CONFIGS, ROOT, SHARED
from PIL import Image

DATA = SHARED / "data"
SHORT = ["train_cfg.max_iters=3", "train_cfg.val_interval=9", "randomness.seed=0"]
SHORT += ["train_dataloader.num_workers=0", "train_dataloader.persistent_workers=False"]
SHORT += ["default_hooks.logger.interval=1", "train_dataloader.batch_size=1"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the photos of the demo configs are missing"),
]


def train(folder: Path, *arguments: object) -> list[dict]:
    """Return what a training logs."""
    command = [sys.executable, ROOT / "tools" / "train.py", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert run.returncode == 0, run.stderr[-2000:]
    (log,) = (folder / "work_dirs").glob("*/2*/vis_data/scalars.json")
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    "config, score, reached",
    [
        ("fpn_xcit-n12-p16_camvid", "mIoU", 34),
        ("mask-rcnn_xcit-n12-p16_nuts", "coco/segm_mAP", 0.45),
    ],
)
def test_a_demo_config_reaches_its_score(config, score, reached, folder):
    (folder / "data").symlink_to(DATA)
    assert train(folder, CONFIGS / "demo" / f"{config}.py")[-1][score] >= reached


def test_maps_train_alike_beside_photos_as_png(trained_segmentor, folder):
    photos = DATA / "camvid" / "images" / "training"
    maps = DATA / "camvid" / "annotations" / "training"
    original = folder / "original"
    shutil.copytree(photos, original / "data/images/training")
    shutil.copytree(maps, original / "data/annotations/training")
    beside = folder / "beside"
    (beside / "data/train").mkdir(parents=True)
    for photo in photos.iterdir():
        Image.open(photo).save(beside / "data/train" / f"{photo.stem}.png")
        shutil.copy(maps / f"{photo.stem}.png", beside / "data/train" / f"{photo.stem}_mask.png")
    command = ["--from", trained_segmentor, "--data", "data", "--cfg-options", *SHORT]
    losses = [[line["loss"] for line in train(root, *command)[:3]] for root in (original, beside)]
    assert losses[0] == losses[1] and len(losses[0]) == 3
