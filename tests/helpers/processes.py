"""Processes that begin with everything imported: tools and scripts, to be killed, and two ranks."""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from helpers import configs  # noqa: F401  # makes mmengine parse each metafile only once
from helpers.paths import ROOT

# A server imports the libraries once; every process is forked from it, with no thread running.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "xcit_mm.commands.train",
        "xcit_mm.commands.test",
        *(f"{lib}.{part}" for lib in ("mmdet", "mmseg") for part in ("datasets", "models", "apis")),
    ]
)


def run_tool(name: str, *arguments: object, **options: Any) -> CompletedProcess[str]:
    """Run tools/NAME.py to its end, with the options of `run_script`."""
    return run_script(ROOT / "tools" / f"{name}.py", *arguments, **options)


def run_script(
    script: Path,
    *arguments: object,
    cwd: Path,
    kill_at: tuple | None = None,
) -> CompletedProcess[str]:
    """Run a script as `python SCRIPT ARGUMENTS` does, to its end or `arrange_death(*kill_at)`."""
    argv = [str(script), *map(str, arguments)]
    files = [cwd / "stdout.txt", cwd / "stderr.txt"]
    process = CONTEXT.Process(target=_run, args=(argv, cwd, files, kill_at))
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{script} hangs: {files[1].read_text()[-2000:]}")
    return CompletedProcess(argv, process.exitcode, *(file.read_text() for file in files))


def in_two_processes(
    function: Callable, *arguments: object, start_method: str = "forkserver"
) -> None:
    """Call a function of a rank, 0 or 1, and arguments in two processes; raise what one raised.

    Processes that use a GPU need the start method 'spawn': CUDA works in no fork of the server.
    """
    from torch.multiprocessing import start_processes

    processes = start_processes(function, arguments, 2, join=False, start_method=start_method)
    try:
        deadline = time.time() + 240
        while not processes.join(timeout=5):
            assert time.time() < deadline, "the processes hang"
    finally:
        for process in processes.processes:
            process.kill()


def _run(
    argv: list[str],
    cwd: Path,
    files: list[Path],
    kill_at: tuple | None,
) -> None:
    import torch
    from mmengine.runner import runner

    runner.collect_env = dict  # for the log, in a second
    end_with_the_parent()
    os.chdir(cwd)
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if kill_at:
        arrange_death(*kill_at)
    sys.argv = argv
    sys.path.insert(0, str((cwd / argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def end_with_the_parent() -> None:
    """Let this process end with the server, and its workers with it.

    Workers of torch may wait for a killed process for ever.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of Linux
    os.register_at_fork(after_in_child=lambda: prctl(1, signal.SIGKILL))


def arrange_death(call: str, count: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to this process at the n-th call of a method of hooks, or of os.replace.

    Args:
        call: Name of a method of hooks, "before_replace" or "after_replace".
        count: Number of the call, from 1.
        number: The signal. Another one than SIGKILL is sent to the whole process group, as torchrun
            sends it.
    """
    from mmengine.runner import Runner

    if number != signal.SIGKILL:
        os.setpgid(0, 0)
    remaining = count
    replace = os.replace
    call_hook = Runner.call_hook

    def count_down() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            target = os.getpid() if number == signal.SIGKILL else -os.getpgrp()
            # By another process: workers of torch take a signal of their parent for its end.
            subprocess.run(["kill", f"-{int(number)}", "--", str(target)])

    def fatal_replace(*paths: object) -> None:
        if call == "before_replace":
            count_down()
        replace(*paths)
        if call == "after_replace":
            count_down()

    def fatal_hook(runner: Runner, fn_name: str, **kwargs: object) -> None:
        if fn_name == call:
            count_down()
        call_hook(runner, fn_name, **kwargs)

    os.replace = fatal_replace
    Runner.call_hook = fatal_hook
