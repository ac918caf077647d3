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


def test_a_config_trains_the_data_that_it_names(trained, start, folder, capsys):
    """Its path was edited, and another data set of the same name has taken its copies."""
    for name in ("old", "new"):
        description = {"data.yaml": f"train: images/train\n{NAMES}"}
        write_files(folder / name / "data", IN_FOLDERS, description)
    write_files(folder / "new" / "data", "images/train/more.jpg labels/train/more.txt")
    start("--from", trained, "--data", folder / "old" / "data")
    config = folder / "data.py"
    config.rename(folder / "first.py")
    start("--from", trained, "--data", folder / "new" / "data")
    for path, photos in (("first.py", 3), ("data.py", 4)):
        cfg = start(folder / path)
        copy = json.loads(Path(cfg.train_dataloader.dataset.ann_file).read_text())
        assert len(copy["images"]) == photos
        assert "data-coco is of other data" in capsys.readouterr().err
    text = config.read_text().replace(str(folder / "new"), str(folder / "old"))
    config.write_text(text)
    cfg = start(config)
    assert len(json.loads(Path(cfg.train_dataloader.dataset.ann_file).read_text())["images"]) == 3


def test_names_of_files_never_become_code_of_the_config(trained, start, folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = {"x\nraise SystemExit#.dat": "", "Icon\r": ""}
    write_files(
        folder / "(nuts)", IN_FOLDERS, {"data.yaml": f"train: images/train\n{NAMES}"} | code
    )
    cfg = start("--from", trained, "--data", folder / "(nuts)")
    assert Path(cfg.filename).name == "nuts.py"
    assert "(x\\nraise SystemExit#.dat)" in Path("nuts.py").read_text()
