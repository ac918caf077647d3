"""Processes with the variables of torchrun, without its start."""

import os
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from helpers.processes import CONTEXT, end_with_the_parent


def run_ranks(count: int, function: Callable, *arguments: object, log: Path) -> list[int | None]:
    """Call a function as `start_ranks` does, and return the exit codes of the processes."""
    processes = start_ranks(count, function, *arguments, log=log)
    for process in processes:
        process.join(100)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def start_ranks(count: int, function: Callable, *arguments: object, log: Path) -> list[BaseProcess]:
    """Call a function of a rank and arguments in processes.

    Args:
        log: File to which all of them write.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(server.getsockname()[1]))
    processes: list[BaseProcess] = []
    for rank in range(count):
        variables = dict(address, WORLD_SIZE=str(count), RANK=str(rank), LOCAL_RANK=str(rank))
        work = (function, (rank, *arguments), variables, log)
        processes.append(CONTEXT.Process(target=_run_rank, args=work))
        processes[-1].start()
    return processes


def _run_rank(function: Callable, arguments: tuple, variables: dict[str, str], log: Path) -> None:
    import torch

    end_with_the_parent()
    os.environ.update(variables)
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    torch.set_num_threads(1)
    function(*arguments)
