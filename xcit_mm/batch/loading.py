"""Loading of images in other processes, which send them through pipes."""

import io
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, Dataset

__all__ = ["MAX_WAIT", "Loader"]

MAX_WAIT = 900  # seconds for the next item


class Loader:
    """Iterable of the results of `load` for each of some tasks, computed in other processes, in the order of the tasks.

    Each iteration begins with `tasks()`. The processes stay for the next iteration. With 0 processes, this process
    loads. Results are sent as bytes through pipes, not in shared memory, of which a container has little.

    Raises:
        RuntimeError: If a process dies, or no result arrives for `MAX_WAIT` seconds.
    """

    def __init__(
        self, load: Callable[[Any], Any], tasks: Callable[[], Iterator[Any]], processes: int, prefetch: int = 2
    ) -> None:
        options: dict[str, Any] = {}
        if processes:
            options = dict(prefetch_factor=prefetch, persistent_workers=True, timeout=MAX_WAIT)
        self._loader: DataLoader = DataLoader(
            _Dataset(load, as_bytes=processes > 0),
            batch_size=None,
            sampler=_Sampler(tasks),
            collate_fn=_unchanged,
            num_workers=processes,
            worker_init_fn=_ignore_interrupts,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:
        for item in self._loader:
            yield pickle.loads(item) if self._loader.num_workers else item


class _Sampler(Iterable):
    def __init__(self, tasks: Callable[[], Iterator[Any]]) -> None:
        self._tasks = tasks

    def __iter__(self) -> Iterator[Any]:
        return self._tasks()


class _Dataset(Dataset):
    def __init__(self, load: Callable[[Any], Any], as_bytes: bool) -> None:
        self._load, self._as_bytes = load, as_bytes

    def __getitem__(self, task: Any) -> Any:
        result = self._load(task)
        if not self._as_bytes:
            return result
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(result)
        return file.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which is faster."""

    def reducer_override(self, value: Any) -> Any:
        return (from_numpy, (value.numpy(),)) if type(value) is Tensor else NotImplemented


def _unchanged(item: Any) -> Any:
    return item


def _ignore_interrupts(process: int) -> None:
    """Leave Ctrl-C to the main process, which writes the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
