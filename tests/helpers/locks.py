"""A folder that another process has locked."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from xcit_mm.utils.folders import lock_folder


@contextmanager
def locked_by_another_process(folder: Path) -> Iterator[None]:
    context = multiprocessing.get_context("fork")
    is_locked = context.Event()
    process = context.Process(target=_hold, args=(folder, is_locked), daemon=True)
    process.start()
    assert is_locked.wait(30)
    try:
        yield
    finally:
        process.kill()
        process.join()


def _hold(folder: Path, is_locked: Event) -> None:
    with lock_folder(folder):
        is_locked.set()
        time.sleep(600)
