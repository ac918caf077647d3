"""Loading of images in other processes, which send them through pipes."""

import io
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

MAX_WAIT = 900  # seconds for one item


class LoaderDied(RuntimeError):
    """Error of a process that died or hung while it loaded an item."""


class Loader:
    """Iterable of the results of `load` for some tasks, computed in other processes, in the order of the tasks.

    Each iteration begins with `tasks()`. With 0 processes, this process loads. The processes exist in a `with` block.
    Each has a pipe, not shared memory, of which a container has little. If a process dies, its pipe ends.

    Raises:
        LoaderDied: If a process dies, or a result takes longer than `timeout` seconds or `MAX_WAIT`.
    """

    def __init__(
        self,
        load: Callable[[Any], Any],
        tasks: Callable[[], Iterator[Any]],
        processes: int,
        prefetch: int = 2,
        timeout: float | None = None,
    ) -> None:
        self._load, self._tasks, self._count, self._prefetch = load, tasks, processes, prefetch
        self._timeout = timeout or 0.0

    def __enter__(self) -> "Loader":
        context, self._processes, connections = multiprocessing.get_context("fork"), [], []
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            connections.append(ours)
            process = context.Process(target=_serve, args=(self._load, theirs, connections, self._timeout), daemon=True)
            process.start()
            theirs.close()  # so that our end notices the death of the process
            self._processes.append(process)
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        for connection in connections:
            self._idle.put(connection)
        self._threads = ThreadPoolExecutor(max(1, self._count))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[Any]:
        if not self._count:
            yield from map(self._load, self._tasks())
            return
        futures: deque[Future] = deque()
        for task in self._tasks():
            futures.append(self._threads.submit(self._request, task))
            if len(futures) == self._count * self._prefetch:
                yield pickle.loads(futures.popleft().result())
        while futures:
            yield pickle.loads(futures.popleft().result())

    def _request(self, task: Any) -> bytes:
        connection = self._idle.get()
        try:
            connection.send(task)
            if not connection.poll(MAX_WAIT):
                raise LoaderDied(f"reading an image takes more than {MAX_WAIT} seconds")
            result = connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise LoaderDied("a process that reads images died, out of memory or by a crash of a decoder") from error
        finally:
            self._idle.put(connection)
        return result


def _serve(load: Callable[[Any], Any], connection: Connection, inherited: list[Connection], timeout: float) -> None:
    """Answer requests until the other end is closed. SIGALRM ends the process if one exceeds the time limit."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process writes the results after Ctrl-C
    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, timeout)
            result = load(task)
            signal.setitimer(signal.ITIMER_REAL, 0)
            file = io.BytesIO()
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(result)
            connection.send_bytes(file.getbuffer())
        except (EOFError, BrokenPipeError):
            return


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which is faster."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if type(value) is torch.Tensor else NotImplemented
