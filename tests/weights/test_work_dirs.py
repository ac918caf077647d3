"""The checkpoint of a work folder is the best of its newest run, wherever the folder lies."""

import shutil
from pathlib import Path

import pytest
import torch

from xcit_mm.weights.work_dirs import find_checkpoint_in


def test_a_moved_work_folder_has_its_own_checkpoints(work_dir, tmp_path):
    folder = Path(shutil.move(work_dir, tmp_path / "moved"))
    assert find_checkpoint_in(folder) == str(folder / "iter_2.pth")


def test_the_file_of_another_folder_does_not_stand_in_for_one_of_a_copy(work_dir, tmp_path):
    copy = Path(shutil.copytree(work_dir, tmp_path / "copy"))
    assert find_checkpoint_in(copy) == str(copy / "iter_2.pth")
    (copy / "iter_2.pth").unlink()
    assert find_checkpoint_in(copy) == str(copy / "iter_2.pth")


@pytest.mark.parametrize("place", ["{}/large_disk/iter_2.pth", "s3://bucket/iter_2.pth"])
def test_a_run_may_save_outside_of_its_folder(place, work_dir, tmp_path):
    (tmp_path / "large_disk").mkdir()
    (work_dir / "iter_2.pth").rename(tmp_path / "large_disk" / "iter_2.pth")
    (work_dir / "last_checkpoint").write_text(place.format(tmp_path))
    assert find_checkpoint_in(work_dir) == place.format(tmp_path)


def test_the_only_checkpoint_of_a_folder_is_enough(work_dir):
    (work_dir / "last_checkpoint").write_text("")  # as a kill may leave it
    with pytest.raises(ValueError, match=r"mine has the checkpoints iter_1.pth, iter_2.pth: give"):
        find_checkpoint_in(work_dir)
    (work_dir / "iter_2.pth").rename(work_dir / "model.safetensors")
    (work_dir / "iter_1.pth").unlink()
    assert find_checkpoint_in(work_dir) == str(work_dir / "model.safetensors")


def save(
    path: Path, minute: int, best: dict[str, float], run: str = "first", metric: str = ""
) -> None:
    """Save a checkpoint as mmengine does, with the best checkpoint that it records."""
    info = dict(experiment_name=run)
    for name, score in best.items():
        info[f"best_ckpt{metric}"] = f"work_dirs/elsewhere/{name}"
        info[f"best_score{metric}"] = score
    iteration = int(path.stem.rpartition("_")[2])
    meta = dict(iter=iteration, time=f"20260102_10{minute:02}00")
    torch.save(dict(meta=meta, message_hub=dict(runtime_info=info), state_dict={}), path)
    if path.name.startswith("iter"):
        (path.parent / "last_checkpoint").write_text(str(path))


BEST_1, BEST_2 = "best_mIoU_iter_1.pth", "best_mIoU_iter_2.pth"


def test_the_best_checkpoint_comes_before_the_last(tmp_path):
    save(tmp_path / BEST_1, 1, {BEST_1: 40})
    save(tmp_path / "iter_2.pth", 2, {BEST_1: 40})
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_1)
    (tmp_path / "iter_2.pth").unlink()
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_1)


def test_of_two_metrics_the_first_decides(tmp_path):
    for metric, score in dict(mIoU=40, aAcc=90).items():
        name = f"best_{metric}_iter_1.pth"
        save(tmp_path / name, 1, {name: score}, metric=f"_{metric}")
    content = torch.load(tmp_path / "best_aAcc_iter_1.pth", weights_only=False)
    info = dict(best_ckpt_mIoU=BEST_1, best_score_mIoU=40)
    content["message_hub"]["runtime_info"] = info | content["message_hub"]["runtime_info"]
    torch.save(content, tmp_path / "best_aAcc_iter_1.pth")
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_1)


def test_the_best_of_an_earlier_run_is_not_the_best_of_a_run_without_validation(tmp_path):
    save(tmp_path / BEST_1, 1, {BEST_1: 90})
    save(tmp_path / "iter_2.pth", 2, {}, run="second")
    assert find_checkpoint_in(tmp_path) == str(tmp_path / "iter_2.pth")


def test_a_worse_run_in_the_same_folder_has_its_own_best(tmp_path):
    save(tmp_path / BEST_1, 1, {BEST_1: 90})
    save(tmp_path / BEST_2, 2, {BEST_2: 13}, run="second")
    save(tmp_path / "iter_2.pth", 3, {BEST_2: 13}, run="second")
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_2)


def test_a_run_that_was_killed_before_its_first_save_has_its_own_best(tmp_path):
    save(tmp_path / BEST_2, 1, {BEST_2: 90})
    save(tmp_path / "iter_2.pth", 1, {BEST_2: 90})
    save(tmp_path / BEST_1, 2, {BEST_1: 13}, run="second")
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_1)


@pytest.mark.parametrize("is_former_removed", [True, False])
def test_after_a_kill_the_best_is_the_one_that_no_other_checkpoint_records(
    is_former_removed, tmp_path
):
    if not is_former_removed:
        save(tmp_path / BEST_1, 1, {BEST_1: 40})
    save(tmp_path / "iter_2.pth", 2, {BEST_1: 40})
    save(tmp_path / BEST_2, 2, {BEST_2: 90})
    assert find_checkpoint_in(tmp_path) == str(tmp_path / BEST_2)
