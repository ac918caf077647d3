"""Folders of results are locked by one process."""

import multiprocessing

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
