"""A folder with config and weights is a model: a work folder wherever it lies, or a download from the Hub."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from weight_files import path_of, same

from xcit_mm.weights.models import find_config, find_model
from xcit_mm.weights.reader import load_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def work_dir(tmp_path) -> Path:
    """The folder of a run that has saved iter_1.pth and iter_2.pth."""
    folder = tmp_path / "work_dirs" / "mine"
    folder.mkdir(parents=True)
    Config(dict(a=dict(b=[1, (2, -3.5)], c={"d e": None}))).dump(folder / "mine.py")
    for name in ("iter_1.pth", "iter_2.pth"):
        torch.save(dict(state_dict={}), folder / name)
    (folder / "last_checkpoint").write_text(str(folder / "iter_2.pth"))
    return folder


def files(folder: Path, checkpoint: str) -> tuple[str, str]:
    return str(folder / "mine.py"), str(folder / checkpoint)


@pytest.mark.parametrize("original_stays", [True, False])
def test_a_moved_work_folder_has_its_own_checkpoints(original_stays, work_dir, tmp_path):
    shutil.copytree(work_dir, tmp_path / "moved")
    if not original_stays:
        shutil.rmtree(work_dir)
    assert find_model(str(tmp_path / "moved")) == files(tmp_path / "moved", "iter_2.pth")
    (tmp_path / "moved" / "iter_2.pth").unlink()  # the file of the other folder does not stand in for it
    assert find_model(str(tmp_path / "moved")) == files(tmp_path / "moved", "iter_2.pth")


def test_a_run_may_save_outside_of_its_folder(work_dir, tmp_path):
    (tmp_path / "large_disk").mkdir()
    (work_dir / "iter_2.pth").rename(tmp_path / "large_disk" / "iter_2.pth")
    for place in (str(tmp_path / "large_disk" / "iter_2.pth"), "s3://bucket/iter_2.pth"):
        (work_dir / "last_checkpoint").write_text(place)
        assert find_model(str(work_dir)) == (str(work_dir / "mine.py"), place)


def test_the_best_checkpoint_comes_before_the_last_and_the_only_one_is_enough(work_dir):
    (work_dir / "best_mIoU_iter_1.pth").touch()
    assert find_model(str(work_dir)) == files(work_dir, "best_mIoU_iter_1.pth")
    (work_dir / "best_mIoU_iter_1.pth").unlink()
    (work_dir / "last_checkpoint").unlink()
    with pytest.raises(ValueError, match=r"mine has the checkpoints iter_1.pth, iter_2.pth: give one"):
        find_model(str(work_dir))
    assert find_config(str(work_dir)) == str(work_dir / "mine.py")
    (work_dir / "iter_2.pth").rename(work_dir / "model.safetensors")
    (work_dir / "iter_1.pth").unlink()
    assert find_model(str(work_dir)) == files(work_dir, "model.safetensors")


def test_a_checkpoint_alone_finds_the_config_beside_it(work_dir):
    assert find_model(str(work_dir / "iter_1.pth")) == files(work_dir, "iter_1.pth")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*iter_3\.pth"):
        find_model(str(work_dir / "iter_3.pth"))
    (work_dir / "other.py").touch()
    with pytest.raises(FileNotFoundError, match=r"must have one config, but has mine\.py, other\.py: give config"):
        find_model(str(work_dir / "iter_1.pth"))


@pytest.fixture
def hub(work_dir, tmp_path, monkeypatch) -> Path:
    """The folder of hf://me/model in the cache of huggingface_hub, which is offline."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache = tmp_path / "hub" / "models--me--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(COMMIT)
    (cache / "snapshots").mkdir()
    return Path(shutil.move(work_dir, cache / "snapshots" / COMMIT))


def test_a_work_folder_on_the_hub_is_a_model(hub, tmp_path):
    shutil.copy(path_of("dino-backbone_p16.pth", tmp_path), hub / "best_mIoU.pth")
    assert find_model("hf://me/model") == files(hub, "best_mIoU.pth")
    assert same(load_checkpoint("hf://me/model"), torch.load(hub / "best_mIoU.pth"))


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "model = open('ran', 'w')",
        "dict = open; x = dict(file='ran', mode='w')",
        "model = dict(a=[*range(3)])",
        'model = {{\'$X:open("ran","w")\'}}',  # mmengine replaces it by what follows the colon
        "_base_ = './other.py'",
        "a.b = 1",
        "model = (",
        "del a",
    ],
)
def test_a_config_of_the_hub_that_is_a_program_is_not_run(line, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (hub / "mine.py").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"mine\.py is not (loaded, because it may run code|a config: SyntaxError)"):
        find_model("hf://me/model")
    assert not Path("ran").exists()


def test_an_unknown_model_of_the_hub_is_one_line(hub):
    with pytest.raises(ConnectionError, match=r"cannot download hf://me/none .*check the name") as error:
        find_model("hf://me/none")
    assert "\n" not in str(error.value)


def test_a_work_folder_predicts_like_its_files(shapes, models, call, tmp_path):
    config, checkpoint = models["det"]
    Config.fromfile(config).dump(tmp_path / "mine.py")  # as mmengine's runner does
    (tmp_path / "iter_9.pth").symlink_to(checkpoint)
    image, found = next((shapes / "images" / "validation").iterdir()), []
    for out, given in (("folder", [tmp_path]), ("files", [config, "--checkpoint", checkpoint])):
        assert call("infer", image, "--model", *given, "--out", tmp_path / out)[0] == 0
        found.append(json.loads((tmp_path / out / "predictions.json").read_text()))
    assert found[0] == found[1] != []
