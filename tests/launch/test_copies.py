"""The copies of a data set that the library reads follow the user's files."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.layouts import YOLO, write_files

IN_FOLDERS = "images/train/{a/1,b/1,top}.jpg labels/train/{a/1,b/1,top}.txt"
NAMES = "names: [thing]\n"


def test_the_copy_follows_corrected_labels(trained, start, folder, capsys):
    names = "train: images/train\nnames: [thing, other]\n"
    write_files(folder / "data", IN_FOLDERS, {"data.yaml": names})
    start("--from", trained, "--data", folder / "data")
    write_files(folder / "data", "", {"labels/train/top.txt": YOLO.replace("0", "1", 1)})
    capsys.readouterr()
    cfg = start(folder / "data.py")
    copy = json.loads(Path(cfg.train_dataloader.dataset.ann_file).read_text())
    assert sorted(entry["category_id"] for entry in copy["annotations"]) == [1, 1, 2]
    assert "data has changed" in capsys.readouterr().err
    start(folder / "data.py")
    assert "has changed" not in capsys.readouterr().err
    shutil.rmtree(folder / "data-coco")
    start(folder / "data.py")
    assert "data-coco is missing" in capsys.readouterr().err
    write_files(folder / "data", "", {"data.yaml": f"train: images/train\n{NAMES}"})
    write_files(folder / "data", "", {"labels/train/top.txt": YOLO})
    with pytest.raises(SystemExit, match="write another config by --from"):
        start(folder / "data.py")
