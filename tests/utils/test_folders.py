"""Folders of results: resumed with the same settings alone, by one process, and nothing of the
user's is removed."""

import multiprocessing
from pathlib import Path

import pytest

from xcit_mm.utils.folders import open_folder


def open_and_close(folder: Path, **settings: object) -> None:
    with open_folder(folder, settings):
        pass


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(tile=256, dtype="float32"), "tile was 512, is 256"),
        (dict(tile=512), "dtype was float32, is None"),
        (dict(tile=512, dtype="float32", bands=(1, 2), new=1), "new was None, is 1"),
    ],
)
def test_other_settings_are_refused_by_name(changed, message, tmp_path):
    settings = dict(tile=512, dtype="float32", bands=(1, 2))
    open_and_close(tmp_path / "out", **settings)
    with pytest.raises(ValueError, match=message):
        open_and_close(tmp_path / "out", **changed)
    open_and_close(tmp_path / "out", **settings)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]


def test_damaged_settings_are_named(tmp_path):
    (tmp_path / "run.json").write_text('{"tile": 5')
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        open_and_close(tmp_path, tile=512)


def test_overwriting_removes_the_listed_files_and_empty_folders_alone(tmp_path):
    open_and_close(tmp_path, tile=512)
    results = [tmp_path / "labels" / "a" / "1.png", tmp_path / "labels" / "2.png"]
    own = tmp_path / "labels" / "notes.txt"
    for path in [*results, own]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with open_folder(tmp_path, dict(tile=256), overwrite=True, list_results=lambda: results):
        assert own.exists() and not any(path.exists() for path in results)
        assert not results[0].parent.exists()
    open_and_close(tmp_path, tile=256)


def _hold(folder: Path, is_open: multiprocessing.Event) -> None:
    with open_folder(folder, dict(tile=512)):
        is_open.set()
        multiprocessing.Event().wait()


def test_a_folder_is_open_in_one_process_at_a_time(tmp_path):
    context = multiprocessing.get_context("fork")
    is_open = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, is_open))
    other.start()
    assert is_open.wait(30)
    with pytest.raises(BlockingIOError, match="another process writes into"):
        open_and_close(tmp_path, tile=512)
    other.kill()
    other.join()
    open_and_close(tmp_path, tile=512)  # the lock ended with the process


def test_a_process_that_is_forked_does_not_keep_the_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    is_closed = context.Event()
    with open_folder(tmp_path, dict(tile=512)):
        other = context.Process(target=is_closed.wait, args=(60,))
        other.start()
    open_and_close(tmp_path, tile=512)
    assert other.is_alive()
    is_closed.set()
    other.join()
