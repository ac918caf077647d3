"""The end of a fine-tuning: held-out photos with labels beside predictions."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xcit_mm.__main__ import main

# A training of two iterations.
QUICK = ["train_cfg.max_iters=2", "train_cfg.val_interval=2", "default_hooks.checkpoint.interval=2"]
QUICK += [
    f"{split}_dataloader.{key}"
    for split in ("train", "val", "test")
    for key in ("num_workers=0", "persistent_workers=False")
]


@pytest.mark.parametrize("model", ["trained", "trained_segmentor"])
def test_a_fine_tuning_ends_with_labels_beside_predictions(
    model, own_data, maps, folder, request, capsys
):
    data = own_data if model == "trained" else [str(maps), "--config", "my-data.py"]
    arguments = ["finetune", str(request.getfixturevalue(model)), *data]
    assert main([*arguments, "--cfg-options", *QUICK]) == 0
    shown, weights = capsys.readouterr().err.splitlines()[-2:]
    assert shown == "labels beside predictions: work_dirs/my-data/predictions"
    assert weights.startswith("weights: work_dirs/my-data/best_")
    drawings = list(Path("work_dirs/my-data/predictions").iterdir())
    assert len(drawings) == 4
    left, right = np.split(np.asarray(Image.open(drawings[0]), float), 2, axis=1)
    assert len(left) == 96 and np.abs(left[:, :96] - right[:, :96]).mean() > 1
