"""The end of a fine-tuning: its scores, and held-out photos with labels beside predictions."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from xcit_mm.commands import train

# A training of two iterations.
QUICK = ["train_cfg.max_iters=2", "train_cfg.val_interval=2", "default_hooks.checkpoint.interval=2"]
QUICK += [
    f"{split}_dataloader.{key}"
    for split in ("train", "val", "test")
    for key in ("num_workers=0", "persistent_workers=False")
]


def read_columns(work_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the halves of the drawing of held-out photos."""
    drawing = np.asarray(Image.open(work_dir / "predictions.jpg"), float)
    left, right = np.split(drawing, 2, axis=1)
    return left, right


def test_a_detector_ends_with_the_score_of_each_class_and_a_drawing(
    trained, own_data, folder, start, capsys
):
    start("--from", trained, *own_data, "--boxes")
    assert train.main([str(folder / "my-data.py"), "--cfg-options", *QUICK]) == 0
    scores = capsys.readouterr().err.splitlines()[-3]
    row = r"scores of the best checkpoint: circle [\d.]+, square [\d.]+, bbox_mAP [\d.]+"
    assert re.fullmatch(row, scores)
    left, right = read_columns(folder / "work_dirs" / "my-data")
    assert np.abs(left - right).mean() > 1


def test_a_segmentor_ends_with_its_score_and_white_where_no_label_is(
    trained_segmentor, maps, folder, capsys
):
    for label in maps.glob("masks/*/*.png"):
        pixels = np.asarray(Image.open(label)).copy()
        pixels[:60] = 255
        Image.fromarray(pixels).save(label)
    arguments = ["--from", str(trained_segmentor), "--data", str(maps)]
    assert train.main([*arguments, "--cfg-options", *QUICK]) == 0
    assert "scores of the best checkpoint: mIoU " in capsys.readouterr().err
    left, right = read_columns(folder / "work_dirs" / "maps")
    assert left[20:100, 20:100].mean() > right[20:100, 20:100].mean() + 20
