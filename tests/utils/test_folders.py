"""Folders of results are locked by one process, and are in order after a kill or an error."""

import multiprocessing
from pathlib import Path

import pytest

from xcit_mm.utils import folders
from xcit_mm.utils.atomic import restored_on_error
from xcit_mm.utils.folders import open_folder


def test_a_process_that_is_forked_does_not_keep_the_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    is_closed = context.Event()
    with open_folder(tmp_path, dict(tile=512)):
        other = context.Process(target=is_closed.wait, args=(60,))
        other.start()
    with open_folder(tmp_path, dict(tile=512)):
        pass
    assert other.is_alive()
    is_closed.set()
    other.join()


def test_a_folder_that_a_kill_left_half_cleared_is_still_of_its_run(tmp_path, monkeypatch):
    """Its rows are neither taken into the results of another run, nor for files of the user."""
    with open_folder(tmp_path, dict(tile=512)):
        for number in range(9):
            (tmp_path / f"row-{number}").touch()

    unlink = Path.unlink

    def stop_at_the_last(path: Path, missing_ok: bool = False) -> None:
        if len(list(tmp_path.iterdir())) == 3:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", stop_at_the_last)
        folders.resume_folder(tmp_path, dict(tile=256), overwrite=True)
    with open_folder(tmp_path, dict(tile=256), overwrite=True):
        assert {path.name for path in tmp_path.iterdir()} == {folders.LOCK, folders.SETTINGS}


def test_a_link_to_a_folder_on_another_disk_is_replaced(tmp_path):
    link = tmp_path / "tiles"
    (tmp_path / "disk").mkdir()
    link.symlink_to(tmp_path / "disk")
    with restored_on_error([link]):
        link.mkdir()
    assert {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == {"disk", "tiles"}
