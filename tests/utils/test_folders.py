"""Folders of results: resumed with the same settings alone, by one process, and nothing of the
user's is removed."""

import multiprocessing
from pathlib import Path

from xcit_mm.utils.folders import check_output, open_folder


def open_and_close(folder: Path, **settings: object) -> None:
    with open_folder(folder, settings):
        pass


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


def test_a_url_is_no_file_below_the_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_output(tmp_path, ["https://host/model.pth"])
