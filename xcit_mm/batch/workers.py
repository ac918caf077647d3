"""Workers that predict the shards of a run: the calling process, the ranks of torchrun, or actors of a Ray cluster."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..prediction.predictor import Predictor
from ..utils.cli import progress_bar
from .engine import Engine
from .failures import WorkerStopped
from .options import Drawing, Execution
from .results import Progress
from .run import Run, open_run

__all__ = ["Job", "Ranks", "run_distributed", "run_local", "run_on_ray"]


class Job(NamedTuple):
    """Everything that a worker needs to predict shards. It can be sent to another machine.

    Paths are absolute, and the same on all machines.
    """

    out: str  # folder of the run
    config: str
    checkpoint: str
    execution: Execution
    drawing: Drawing = Drawing()

    def shards(self, run: Run) -> list[int]:
        """Return the shards to predict."""
        return run.failed() if self.execution.retry_failed else run.pending()

    def size(self, run: Run, shards: Iterable[int]) -> int:
        """Return the number of inputs or tiles to predict."""
        retry = self.execution.retry_failed
        completed = sum(len(run.successful_records(shard, brief=True)) for shard in shards) if retry else 0
        return sum(run.shards[shard].size for shard in shards) - completed

    def engine(self, run: Run, progress: Progress, device: str | None) -> Engine:
        """Load the model."""
        options, execution = run.options, self.execution
        image_options = options.tile, options.overlap, execution.batch_size, options.dtype, options.tta
        predictor = Predictor(self.config, self.checkpoint, device, *image_options, options.min_score)
        return Engine(run, predictor, execution, self.drawing, progress)


def run_local(job: Job, run: Run) -> None:
    """Predict the pending shards in this process."""
    if shards := job.shards(run):
        with run_progress(run, job.size(run, shards)) as progress:
            job.engine(run, progress, job.execution.device).work(shards)


class Ranks:
    """The processes of a torchrun command, which share a key-value store."""

    def __init__(self) -> None:
        if "RANK" not in os.environ:
            raise ValueError("launcher='pytorch' needs RANK and MASTER_ADDR: start the command by torchrun")
        self.store, self.rank, self.size = next(torch.distributed.rendezvous("env://"))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. If a process dies, torchrun ends the other processes."""
        while not condition():
            time.sleep(0.2)

    def wait_for_all(self, counter: str) -> None:
        """Wait until each rank has increased a counter."""
        self.wait(lambda: self.store.add(counter, 0) == self.size)


def run_distributed(job: Job, ranks: Ranks, run: Run | None = None) -> None:
    """Predict pending shards until the ranks have predicted all. Each idle rank takes the next shard.

    Rank 0 gives its run, which the other ranks open, and returns when all ranks have ended. If a rank stops because of
    its own failures, the other ranks take its shards in another round.
    """
    store, device = ranks.store, job.execution.device
    if device is None:
        device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    shards = job.shards(run) if run is not None else []
    stopped = False
    for turn in itertools.count():
        if run is not None and ranks.rank == 0:
            before = _file_times(run, shards)
            store.set(f"total{turn}", str(job.size(run, shards)))
            store.set(f"shards{turn}", ",".join(map(str, shards)))
        else:
            ranks.wait(partial(store.check, [f"shards{turn}"]))
            run = run or open_run(Path(job.out))
            shards = [int(shard) for shard in store.get(f"shards{turn}").decode().split(",") if shard]
        if not shards:
            break
        if not stopped:
            stopped = not _work_in_rank(job, run, shards, ranks, turn, device)
        store.add(f"ended{turn}", 1)
        if ranks.rank == 0:
            ranks.wait_for_all(f"ended{turn}")
            after = _file_times(run, shards)
            shards = [shard for shard in shards if after[shard] == before[shard]]
            if shards and store.add("stopped", 0) == ranks.size:
                raise WorkerStopped("all ranks stopped")
    store.add("left", 1)
    if ranks.rank == 0:
        ranks.wait_for_all("left")


def _work_in_rank(job: Job, run: Run, shards: list[int], ranks: Ranks, turn: int, device: str) -> bool:
    """Take shards and predict them. Return False if the rank stops because of its own failures."""

    def next_shards() -> Iterator[int]:
        while (index := ranks.store.add(f"taken{turn}", 1) - 1) < len(shards):
            yield shards[index]

    total = int(ranks.store.get(f"total{turn}"))
    with run_progress(run, total, ranks.rank, lambda count: ranks.store.add(f"inputs{turn}", count)) as progress:
        try:
            job.engine(run, progress, device).work(next_shards())
        except WorkerStopped as error:
            print(f"rank {ranks.rank} stops: {error}", file=sys.stderr)
            ranks.store.add("stopped", 1)
            return False
    return True


@contextmanager
def run_progress(
    run: Run, total: int, rank: int | None = None, add: Callable[[int], int] | None = None
) -> Iterator[Progress]:
    """Yield a function that updates a progress bar of predicted inputs or tiles.

    Each rank has a line. `add` adds a number to the counter that all ranks share, and returns its value.
    """
    unit = "tile" if any(shard.tile_rows for shard in run.shards) else "image"
    own = 0
    with progress_bar(total, unit, desc=None if rank is None else f"rank {rank}", position=rank) as bar:

        def progress(inputs: int, frames: int) -> None:
            nonlocal own
            own += inputs
            if add is not None:
                bar.set_postfix(own=own, refresh=False)
                inputs = add(inputs) - bar.n
            if frames:
                bar.set_postfix(frames=frames, refresh=False)
            bar.update(inputs)

        yield progress


def run_on_ray(job: Job, run: Run) -> None:
    """Predict the pending shards by actors of a Ray cluster: one per GPU, or without GPUs as many as the cores allow.

    If an actor dies, another actor predicts its shard.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    ray.init(address=job.execution.ray, log_to_driver=False, configure_logging=False)
    shards = job.shards(run)
    with run_progress(run, job.size(run, shards)) as progress:
        while shards:
            before = _file_times(run, shards)
            _run_actors(ray, job, run, shards, progress)
            after, suspects = _file_times(run, shards), len(run.suspects)
            run.collect_suspects()
            remaining = [shard for shard in shards if after[shard] == before[shard]]
            if len(remaining) == len(shards) and len(run.suspects) == suspects:
                path = run.inputs[run.shards[shards[0]].inputs.start].path
                raise RuntimeError(
                    f"all actors died or stopped before a shard was completed, first that of {path}: see Ray's logs"
                )
            shards = remaining


def _file_times(run: Run, shards: Iterable[int]) -> dict[int, int | None]:
    """Return when the file of each shard was written, with failures or without."""
    paths = {shard: run.shard_path(shard) for shard in shards}
    return {shard: path.stat().st_mtime_ns if path.exists() else None for shard, path in paths.items()}


def _run_actors(ray: Any, job: Job, run: Run, shards: list[int], progress: Progress) -> None:
    """Let actors predict shards until all are predicted or all actors died."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cpus = ([int(machine.get(name, 0)) for machine in machines] for name in ("GPU", "CPU"))
    cores = min(1 + job.execution.num_workers, max(1, *cpus))
    needs = dict(num_gpus=1, num_cpus=0) if any(gpus) else dict(num_cpus=cores)
    # An actor needs its cores on one machine: remainders on two machines do not add up.
    count = min(sum(gpus) or sum(cpu // cores for cpu in cpus), len(shards))
    queue = ray.remote(num_cpus=0)(_ShardQueue).remote(shards)
    actors = [ray.remote(**needs)(_Actor).remote(job, queue) for _ in range(count)]
    busy = {actor.work.remote(): actor for actor in actors}
    completed = 0
    while busy:
        ended, _ = ray.wait(list(busy), timeout=1)
        total = ray.get(queue.add_completed.remote(0))
        progress(total - completed, 0)
        completed = total
        for result in ended:
            try:
                ray.get(result)
            except ray.exceptions.RayActorError as error:  # its shard stays pending
                print(f"an actor died: {str(error).splitlines()[0]}", file=sys.stderr)
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, WorkerStopped):
                    raise error.cause from None
                print(f"an actor stopped: {error.cause}", file=sys.stderr)
            ray.kill(busy.pop(result))  # makes room for actors that wait for resources
    ray.kill(queue)


class _ShardQueue:
    """Actor that gives each shard to one worker, and counts completed inputs."""

    def __init__(self, shards: list[int]) -> None:
        self._shards, self._completed = iter(shards), 0

    def next(self) -> int | None:
        return next(self._shards, None)

    def add_completed(self, inputs: int) -> int:
        self._completed += inputs
        return self._completed


class _Actor:
    """Worker in a Ray cluster, with a model of its own."""

    def __init__(self, job: Job, queue: Any) -> None:
        self._job, self._queue = job, queue

    def work(self) -> None:
        import ray

        def progress(inputs: int, frames: int) -> None:
            if inputs:
                self._queue.add_completed.remote(inputs)

        run = open_run(Path(self._job.out))
        shards = iter(lambda: ray.get(self._queue.next.remote()), None)
        self._job.engine(run, progress, self._job.execution.device).work(shards)
