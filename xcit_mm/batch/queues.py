"""Queues between the model and the file of a shard. Ctrl-C does not lose what they hold."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .shards import Record, ShardFormat

__all__ = ["THREADS", "OrderedWriter", "ThreadQueue"]

THREADS = 2
MAX_PENDING = 2 * THREADS  # calls, each of which holds an image in memory


class ThreadQueue:
    """Runs calls in threads, and passes their results to `consume` in the order of submission.

    At the end of the `with` block, and after Ctrl-C, the pending results are passed too.
    """

    def __init__(self, pool: ThreadPoolExecutor, consume: Callable[[Any], None]) -> None:
        self._pool, self._consume = pool, consume
        self._futures: deque[Future] = deque()

    def submit(self, function: Callable, *args: object) -> None:
        """Submit a call. Waits for earlier calls if too many are pending."""
        self._futures.append(self._pool.submit(function, *args))
        self._drain(MAX_PENDING)

    def _drain(self, size: int) -> None:
        while len(self._futures) > size:
            self._consume(self._futures.popleft().result())

    def __enter__(self) -> "ThreadQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self._drain(0)


class OrderedWriter:
    """Writes the records of inputs in the order of the inputs, regardless of the order in which they are completed.

    After Ctrl-C, the records that wait for earlier inputs are written too.
    """

    def __init__(self, writer: ShardFormat, numbers: Iterable[int]) -> None:
        self._writer, self._numbers = writer, deque(numbers)
        self._waiting: dict[int, list[Record]] = {}

    def put(self, number: int, records: list[Record]) -> None:
        """Write the records of an input, or keep them until those of earlier inputs are written."""
        self._waiting[number] = records
        while self._numbers and self._numbers[0] in self._waiting:
            for record in self._waiting.pop(self._numbers.popleft()):
                self._writer.write(record)

    def __enter__(self) -> "OrderedWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for number in sorted(self._waiting):
                for record in self._waiting[number]:
                    self._writer.write(record)
