"""A work folder is one run: it has one config, and its last checkpoint names the best one."""

import os
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
        ("s3://bucket/iter_9.pth", "s3://bucket/iter_9.pth"),
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


def test_the_only_checkpoint_of_a_folder_is_enough(work_dir):
    (work_dir / "last_checkpoint").unlink()
    for number in (1, 2):
        (work_dir / f"iter_{number}.pth").rename(work_dir / f"model_{number}.safetensors")
    message = r"has the configs mine\.py and the checkpoints model_1\.safetensors, model_2.*: give"
    with pytest.raises(ValueError, match=message):
        find_model(work_dir)
    with pytest.raises(FileNotFoundError, match=message):
        load_checkpoint(work_dir)
    (work_dir / "model_1.safetensors").unlink()
    for name in ("iter_3.pth", "mine.py"):  # what a kill has left
        (work_dir / f".unfinished-{name}").touch()
    found = Model(str(work_dir / "mine.py"), str(work_dir / "model_2.safetensors"))
    assert find_in(work_dir) == found


def save(folder: Path, best: str | None = None) -> None:
    """Save the last checkpoint of a run as mmengine does."""
    info = dict(best_ckpt=f"elsewhere/{best}") if best else {}
    torch.save(dict(message_hub=dict(runtime_info=info), state_dict={}), folder / "iter_2.pth")
    (folder / "last_checkpoint").write_text(str(folder / "iter_2.pth"))


def test_the_best_checkpoint_is_the_one_that_the_last_names(tmp_path):
    (tmp_path / "best_mIoU_iter_9.pth").touch()
    save(tmp_path)
    assert find_in(tmp_path).checkpoint == str(tmp_path / "iter_2.pth")
    save(tmp_path, "best_mIoU_iter_1.pth")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*/best_mIoU_iter_1\.pth"):
        load_checkpoint(tmp_path)


def test_of_several_configs_in_a_folder_none_is_chosen(work_dir):
    (work_dir / "other.py").touch()
    with pytest.raises(ValueError, match=r"has the configs mine\.py, other\.py and .* give"):
        find_model(work_dir)


def test_another_checkpoint_takes_the_place_of_a_damaged_one(work_dir):
    last = work_dir / "iter_2.pth"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cannot read .*iter_2\.pth as a checkpoint"):
        find_model(work_dir)
    found = find_model(work_dir, work_dir / "iter_1.pth")
    assert found == (str(work_dir / "mine.py"), str(work_dir / "iter_1.pth"))
