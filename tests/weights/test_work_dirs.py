"""The checkpoint of a work folder is the best of its newest run, wherever the folder lies."""

import shutil
from pathlib import Path

import pytest
import torch

from xcit_mm.weights.work_dirs import find_checkpoint_in


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


def save(folder: Path, name: str, minute: int, best: dict[str, str], run: str = "first") -> None:
    """Save a checkpoint as mmengine does, with the best checkpoint by the metric."""
    info = dict(experiment_name=run)
    for metric, file in best.items():
        info[f"best_ckpt{metric}"] = f"work_dirs/elsewhere/{file}"
        info[f"best_score{metric}"] = 40.0
    meta = dict(iter=int(Path(name).stem[-1]), time=f"20260102_10{minute:02}00")
    content = dict(meta=meta, message_hub=dict(runtime_info=info), state_dict={})
    torch.save(content, folder / name)
    if name.startswith("iter"):
        (folder / "last_checkpoint").write_text(str(folder / name))


BEST_1, BEST_2 = "best_mIoU_iter_1.pth", "best_mIoU_iter_2.pth"
LAST = "iter_2.pth"


@pytest.mark.parametrize(
    "saved, expected",
    [
        ([(BEST_1, 1, {"": BEST_1}), (LAST, 2, {"": BEST_1})], BEST_1),
        ([(BEST_1, 1, {"_mIoU": BEST_1}), (BEST_2, 2, {"_mIoU": BEST_1, "_aAcc": BEST_2})], BEST_1),
        ([(BEST_1, 1, {"": BEST_1}), (LAST, 2, {}, "second")], LAST),
        ([(BEST_1, 1, {"": BEST_1}), (LAST, 3, {"": BEST_2}, "second")], LAST),
        ([(BEST_2, 1, {"": BEST_2}), (LAST, 1, {"": BEST_2}), (BEST_1, 2, {"": BEST_1})], BEST_1),
        ([(LAST, 2, {"": BEST_1}), (BEST_2, 2, {"": BEST_2})], BEST_2),
    ],
    ids=[
        "best before last",
        "first of two metrics",
        "second run without validation",
        "best of the second run is lost",
        "second run killed before its first save",
        "killed between last and best",
    ],
)
def test_the_best_checkpoint_is_the_one_that_the_newest_run_recorded(saved, expected, tmp_path):
    for checkpoint in saved:
        save(tmp_path, *checkpoint)
    assert find_checkpoint_in(tmp_path) == str(tmp_path / expected)
