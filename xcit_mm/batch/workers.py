"""Who predicts the parts of a run: this process, the ranks of torchrun, or the actors of a Ray cluster."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from ..prediction.predictor import Predictor
from .engine import Engine
from .manifest import Run, open_run

__all__ = ["Job", "here", "in_rank", "on_ray"]


class Job(NamedTuple):
    """What every hand needs to know; it can be sent to another machine.

    Attributes:
        out: Folder of the run, the same for all.
        config: Path of the config.
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        batch_size: Images at a time.
        workers: Processes that prepare images, for each model.
        retry: Predict again what has failed, and nothing else.
    """

    out: str
    config: str
    checkpoint: str
    device: str | None = None
    batch_size: int = 1
    workers: int = 0
    retry: bool = False


def _predictor(job: Job, run: Run, device: str | None) -> Predictor:
    options = run.options
    return Predictor(
        job.config, job.checkpoint, device, options["tile"], options["overlap"], job.batch_size, options["dtype"]
    )


def due(job: Job, run: Run) -> list[int]:
    """Parts that are to be predicted."""
    return run.failed() if job.retry else run.missing()


def _count(job: Job, run: Run, parts: Iterable[int]) -> int:
    """How many images, or tiles, of parts are to be predicted."""
    return sum(run.parts[part].weight - (len(run.kept(part, brief=True)) if job.retry else 0) for part in parts)


def here(job: Job, run: Run) -> None:
    """Predict all parts that are due in this process; raises as `Predictor` and `Engine.work` do."""
    parts = due(job, run)
    if parts:
        predict = _predictor(job, run, job.device)
        with Progress(run, parts, _count(job, run, parts)) as progress:
            Engine(run, predict, job.workers, job.retry, progress).work(parts)


def in_rank(job: Job, start: Callable[[], Run]) -> Run | None:
    """As one of torchrun's processes, predict one due part after the other, whichever no other rank has taken.

    Args:
        job: What to do.
        start: Starts the run; called by rank 0 alone.

    Returns:
        The run, in rank 0, when all ranks are done; None in the others.

    Raises:
        ValueError: If the process was not started by torchrun.
    """
    if "RANK" not in os.environ:
        raise ValueError("--launcher pytorch: start it by torchrun, which sets RANK and MASTER_ADDR")
    store, rank, world = next(torch.distributed.rendezvous("env://"))
    if rank == 0:
        run = start()
        due_parts = due(job, run)
        store.set("total", str(_count(job, run, due_parts)))  # now, before any is done
        store.set("parts", ",".join(map(str, due_parts)))
    else:
        _await(lambda: store.check(["parts"]))
        run = open_run(Path(job.out))
    parts = [int(part) for part in store.get("parts").decode().split(",") if part]
    device = job.device or (f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")

    def taken() -> Iterator[int]:
        while (number := store.add("taken", 1) - 1) < len(parts):
            yield parts[number]

    if parts:
        predict = _predictor(job, run, device)
        total = int(store.get("total"))
        with Progress(run, parts, total, rank, lambda count: store.add("inputs", count)) as progress:
            Engine(run, predict, job.workers, job.retry, progress).work(taken())
    store.add("ranks", 1)
    if rank > 0:
        return None
    _await(lambda: store.add("ranks", 0) == world)
    return run


def _await(condition: Callable[[], bool]) -> None:
    """Sleep until it holds; who started the processes ends them all when one dies."""
    while not condition():
        time.sleep(0.2)


class Progress:
    """A line with the inputs that are done, those a second and the time left.

    Args:
        run: The run.
        parts: That are to be done.
        total: How many images, or tiles, of them.
        rank: Among several hands, each of which has a line.
        add: Adds to the number of inputs that all hands have done, and returns it.
    """

    def __init__(
        self,
        run: Run,
        parts: Iterable[int],
        total: int,
        rank: int | None = None,
        add: Callable[[int], int] | None = None,
    ) -> None:
        self._add, self._own = add, 0
        self._bar = tqdm(
            total=total,
            unit="tile" if any(run.parts[part].strips for part in parts) else "image",
            desc=None if rank is None else f"rank {rank}",
            position=rank,
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else 30,  # a log has a line for each
        )

    def __call__(self, inputs: int, frames: int) -> None:
        self._own += inputs
        if self._add is None:
            self._bar.update(inputs)
        else:
            self._bar.set_postfix(own=self._own, refresh=False)
            self._bar.update(self._add(inputs) - self._bar.n)
        if frames:
            self._bar.set_postfix(frames=frames, refresh=False)
            self._bar.update(0)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()


def on_ray(job: Job, run: Run, address: str) -> None:
    """Predict all parts that are due by actors of a Ray cluster, one a GPU, or where there is none, a few a machine.

    Parts whose actor died are taken by another.

    Args:
        job: What to do; its paths must be the same on every machine.
        run: The run.
        address: Of the cluster; 'auto' for the one that this machine is in, 'local' for one of this machine alone.

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ConnectionError: If there is no such cluster.
        RuntimeError: If actors die, and no part is done meanwhile.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    parts = due(job, run)
    with Progress(run, parts, _count(job, run, parts)) as progress:
        while parts:
            before = _stamps(run, parts)
            _ray_round(ray, job, run, parts, progress)
            after = _stamps(run, parts)
            left = [part for part in parts if after[part] == before[part]]
            if len(left) == len(parts):
                first = run.inputs[run.parts[left[0]].inputs.start].path
                raise RuntimeError(
                    f"every actor died and nothing was done, the part of {first} among others: see Ray's logs"
                )
            parts = left


def _stamps(run: Run, parts: Iterable[int]) -> dict[int, tuple[int, int] | None]:
    """What changes when a part's file is written; what failed may fail again, and is done nonetheless."""
    paths = {part: run.path(part) for part in parts}
    there = {part: path.stat() for part, path in paths.items() if path.exists()}
    return {part: (there[part].st_mtime_ns, there[part].st_ino) if part in there else None for part in parts}


def _ray_round(ray: Any, job: Job, run: Run, parts: list[int], progress: Progress) -> None:
    """Let actors take parts until all are taken."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cpus = ([int(machine.get(name, 0)) for machine in machines] for name in ("GPU", "CPU"))
    each = dict(num_gpus=1, num_cpus=0) if any(gpus) else dict(num_cpus=min(1 + job.workers, max(1, *cpus)))
    # An actor is in one machine: what two have left between them is room for none.
    count = min(sum(gpus) or sum(cpu // each["num_cpus"] for cpu in cpus), len(parts))
    queue = ray.remote(num_cpus=0)(_Queue).remote(parts)
    actors = [ray.remote(**each)(_Actor).remote(job._asdict(), queue) for _ in range(count)]
    busy = {actor.work.remote(): actor for actor in actors}
    done = 0
    while busy:
        ended, _ = ray.wait(list(busy), timeout=1)
        now = ray.get(queue.done.remote(0))
        progress(now - done, 0)
        done = now
        for one in ended:
            try:
                ray.get(one)
            except ray.exceptions.RayActorError as error:  # its part is left for the next round
                print(f"an actor died: {str(error).splitlines()[0]}", file=sys.stderr)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            ray.kill(busy.pop(one))  # one that had no room yet may start
    ray.kill(queue)


class _Queue:
    """Gives each part to one actor, and counts what they have done."""

    def __init__(self, parts: list[int]) -> None:
        self._parts, self._done = iter(parts), 0

    def next(self) -> int | None:
        return next(self._parts, None)

    def done(self, inputs: int) -> int:
        self._done += inputs
        return self._done


class _Actor:
    """A model on one machine of a Ray cluster."""

    def __init__(self, job: dict[str, Any], queue: Any) -> None:
        self._job, self._queue = Job(**job), queue

    def work(self) -> None:
        import ray

        run = open_run(Path(self._job.out))
        engine = Engine(
            run,
            _predictor(self._job, run, self._job.device),
            self._job.workers,
            self._job.retry,
            lambda inputs, frames: self._queue.done.remote(inputs) if inputs else None,
        )
        engine.work(iter(lambda: ray.get(self._queue.next.remote()), None))
