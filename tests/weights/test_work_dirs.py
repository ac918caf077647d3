"""A work folder is one run: its config is that of its last checkpoint, which names the best."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from xcit_mm.weights.lookup import find_model, load_checkpoint
from xcit_mm.weights.work_dirs import Model, find_in


@pytest.mark.parametrize(
    "pointer, expected",
    [
        ("", "{run}/iter_2.pth"),  # a kill came before the path was written
        ("{folder}/iter_2.pth", "{folder}/iter_2.pth"),
        ("s3://bucket/iter_2.pth", "s3://bucket/iter_2.pth"),
        ("/before/the/move/iter_1.pth", "{run}/iter_1.pth"),
    ],
)
def test_the_last_checkpoint_is_the_one_that_the_run_has_named(
    pointer, expected, work_dir, tmp_path
):
    """In its folder, which may have been moved, or outside."""
    os.utime(work_dir / "iter_2.pth", (1, 1))  # as a copy of the folder may leave it
    places = dict(run=work_dir, folder=tmp_path)
    if "{folder}" in pointer:
        (work_dir / "iter_2.pth").rename(tmp_path / "iter_2.pth")
    (work_dir / "last_checkpoint").write_text(pointer.format(**places))
    assert find_in(work_dir).checkpoint == expected.format(**places)


def test_the_file_of_another_folder_does_not_stand_in_for_one_of_a_copy(work_dir, tmp_path):
    copy = Path(shutil.copytree(work_dir, tmp_path / "copy"))
    (copy / "iter_2.pth").unlink()
    assert find_in(copy).checkpoint == str(copy / "iter_2.pth")


def test_the_only_checkpoint_of_a_folder_is_enough(work_dir):
    (work_dir / "last_checkpoint").unlink()
    for number in (1, 2):
        (work_dir / f"iter_{number}.pth").rename(work_dir / f"model_{number}.safetensors")
    message = r"mine must have one checkpoint, but has model_1\.safetensors, .*: give"
    with pytest.raises(ValueError, match=message):
        find_model(work_dir)
    with pytest.raises(FileNotFoundError, match=message):
        load_checkpoint(work_dir)
    (work_dir / "model_1.safetensors").unlink()
    for name in ("iter_3.pth", "mine.py"):  # what a kill has left
        (work_dir / f".unfinished-{name}").touch()
    found = Model(str(work_dir / "mine.py"), str(work_dir / "model_2.safetensors"))
    assert find_in(work_dir) == found


CONFIG = "max_iters = 2\nload_from = None\nresume = False\n"


def save(folder: Path, config: str | None, best: str | None = None) -> None:
    """Save the last checkpoint of a run as mmengine does."""
    info = dict(best_ckpt=f"elsewhere/{best}") if best else {}
    content = dict(meta=dict(cfg=config), message_hub=dict(runtime_info=info), state_dict={})
    torch.save(content, folder / "iter_2.pth")
    (folder / "last_checkpoint").write_text(str(folder / "iter_2.pth"))


def test_the_best_checkpoint_is_the_one_that_the_last_names(tmp_path):
    (tmp_path / "best_mIoU_iter_9.pth").touch()
    save(tmp_path, CONFIG)
    assert find_in(tmp_path).checkpoint == str(tmp_path / "iter_2.pth")
    save(tmp_path, CONFIG, "best_mIoU_iter_1.pth")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*/best_mIoU_iter_1\.pth"):
        load_checkpoint(tmp_path)


OTHER = CONFIG.replace("2", "3")
RESUMED = CONFIG.replace("False", "True").replace("None", "'iter_1.pth'")


@pytest.mark.parametrize(
    "trained, configs, found",
    [
        (CONFIG, {"a.py": OTHER, "b.py": CONFIG}, "b.py"),
        (CONFIG, {"a.py": RESUMED}, "a.py"),
        (CONFIG, {"a.py": OTHER}, "give config and checkpoint"),
        (None, {"a.py": CONFIG}, "a.py"),
        (
            None,
            {"a.py": CONFIG, "b.py": CONFIG},
            r"one config, but has a\.py, b\.py: give",
        ),
    ],
    ids=["of two", "resumed", "another run", "weights alone", "weights and two"],
)
def test_the_config_of_a_folder_is_that_of_its_last_checkpoint(trained, configs, found, tmp_path):
    save(tmp_path, trained)
    for name, text in configs.items():
        (tmp_path / name).write_text(text)
    if found in configs:
        assert find_in(tmp_path).config == str(tmp_path / found)
    else:
        with pytest.raises(ValueError, match=found):
            find_model(tmp_path)


def test_another_checkpoint_takes_the_place_of_a_damaged_one(work_dir):
    last = work_dir / "iter_2.pth"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cannot read .*iter_2\.pth as a checkpoint"):
        find_model(work_dir)
    found = find_model(work_dir, work_dir / "iter_1.pth")
    assert found == (str(work_dir / "mine.py"), str(work_dir / "iter_1.pth"))
