"""Workers that predict the shards of a run: the calling process, the ranks of torchrun, or actors of a Ray cluster."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..prediction.predictor import Predictor
from ..utils.cli import progress_bar
from .engine import Engine
from .failures import WorkerStopped
from .results import Progress
from .run import Run, open_run


def load_engine(run: Run, progress: Progress, device: str | None = None) -> Engine:
    """Load the model of a run. The default of `device` is that of the execution."""
    options, execution, manifest = run.options, run.execution, run.manifest
    predictor = Predictor(
        manifest["config"]["path"],
        manifest["checkpoint"]["path"],
        device or execution.device,
        options.tile,
        options.overlap,
        execution.batch_size,
        options.dtype,
        options.tta,
        options.min_score,
    )
    return Engine(run, predictor, progress)


def run_local(run: Run) -> None:
    """Predict the pending shards in this process."""
    if shards := run.to_predict():
        with run_progress(run, run.size(shards)) as progress:
            load_engine(run, progress).work(shards)


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
        """Increase a counter, and in rank 0 wait until each rank has increased it."""
        self.store.add(counter, 1)
        if self.rank == 0:
            self.wait(lambda: self.store.add(counter, 0) == self.size)


def run_distributed(ranks: Ranks, open_run: Callable[[], Run]) -> None:
    """Predict pending shards until the ranks have predicted all. Each idle rank takes the next shard.

    Rank 0 opens its run at once, the other ranks when rank 0 has, and rank 0 returns when all ranks have ended. If a
    rank stops because of its own failures, the other ranks take its shards in another round.
    """
    run = open_run() if ranks.rank == 0 else None
    shards = run.to_predict() if run is not None else []
    stopped = False
    for turn in itertools.count():
        if run is not None and ranks.rank == 0:
            before = _file_times(run, shards)
            ranks.store.set(f"shards{turn}", json.dumps([shards, run.size(shards)]))
        ranks.wait(partial(ranks.store.check, [f"shards{turn}"]))
        run = run or open_run()
        shards, total = json.loads(ranks.store.get(f"shards{turn}"))
        if not shards:
            break
        if not stopped:
            stopped = not _work_in_rank(run, shards, total, ranks, turn)
        ranks.wait_for_all(f"ended{turn}")
        if ranks.rank == 0:
            shards = _unchanged(run, before)
            if shards and ranks.store.add("stopped", 0) == ranks.size:
                raise WorkerStopped("all ranks stopped")
    ranks.wait_for_all("left")


def _work_in_rank(run: Run, shards: list[int], total: int, ranks: Ranks, turn: int) -> bool:
    """Take shards and predict them. Return False if the rank stops because of its own failures."""

    def next_shards() -> Iterator[int]:
        while (index := ranks.store.add(f"taken{turn}", 1) - 1) < len(shards):
            yield shards[index]

    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    with run_progress(run, total, ranks.rank, lambda count: ranks.store.add(f"inputs{turn}", count)) as progress:
        try:
            load_engine(run, progress, run.execution.device or device).work(next_shards())
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


def run_on_ray(run: Run) -> None:
    """Predict the pending shards by actors of a Ray cluster: one per GPU, or without GPUs as many as the cores allow.

    If an actor dies, another actor predicts its shard.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    ray.init(address=run.execution.ray, log_to_driver=False, configure_logging=False)
    shards = run.to_predict()
    with run_progress(run, run.size(shards)) as progress:
        while shards:
            before, suspects = _file_times(run, shards), len(run.suspects)
            _run_actors(ray, run, shards, progress)
            run.collect_suspects()
            shards = _unchanged(run, before)
            if len(shards) == len(before) and len(run.suspects) == suspects:
                path = run.inputs[run.shards[shards[0]].inputs.start].path
                raise RuntimeError(
                    f"all actors died or stopped before a shard was completed, first that of {path}: see Ray's logs"
                )


def _file_times(run: Run, shards: Iterable[int]) -> dict[int, int | None]:
    """Return when the file of each shard was written, with failures or without."""
    paths = {shard: run.shard_path(shard) for shard in shards}
    return {shard: path.stat().st_mtime_ns if path.exists() else None for shard, path in paths.items()}


def _unchanged(run: Run, before: dict[int, int | None]) -> list[int]:
    """Return the shards whose files were not written since `_file_times`."""
    after = _file_times(run, before)
    return [shard for shard in before if after[shard] == before[shard]]


def _run_actors(ray: Any, run: Run, shards: list[int], progress: Progress) -> None:
    """Let actors predict shards until all are predicted or all actors died."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cpus = ([int(machine.get(name, 0)) for machine in machines] for name in ("GPU", "CPU"))
    cores = min(1 + run.execution.num_workers, max(1, *cpus))
    needs = dict(num_gpus=1, num_cpus=0) if any(gpus) else dict(num_cpus=cores)
    # An actor needs its cores on one machine: remainders on two machines do not add up.
    count = min(sum(gpus) or sum(cpu // cores for cpu in cpus), len(shards))
    queue = ray.remote(num_cpus=0)(_ShardQueue).remote(shards)
    actors = [ray.remote(**needs)(_Actor).remote(queue, run.out, run.execution, run.drawing) for _ in range(count)]
    busy = {actor.work.remote(): actor for actor in actors}
    while busy:
        ended, _ = ray.wait(list(busy), timeout=1)
        completed, lines = ray.get(queue.poll.remote())
        progress(completed, 0)
        for line in lines:
            run.report(line)
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
    """Actor that gives each shard to one worker, and collects numbers of completed inputs and lines to print."""

    def __init__(self, shards: list[int]) -> None:
        self._shards, self._completed = iter(shards), 0
        self._lines: list[str] = []

    def next(self) -> int | None:
        return next(self._shards, None)

    def add_completed(self, inputs: int) -> None:
        self._completed += inputs

    def report(self, line: str) -> None:
        self._lines.append(line)

    def poll(self) -> tuple[int, list[str]]:
        """Return what was added since the last call."""
        added, self._completed, self._lines = (self._completed, self._lines), 0, []
        return added


class _Actor:
    """Worker in a Ray cluster, with a model of its own."""

    def __init__(self, queue: Any, *run: Any) -> None:
        self._queue, self._run = queue, run

    def work(self) -> None:
        import ray

        def progress(inputs: int, frames: int) -> None:
            if inputs:
                self._queue.add_completed.remote(inputs)

        run = open_run(*self._run)
        run.report = lambda line: ray.get(self._queue.report.remote(line))  # arrives before this actor ends
        load_engine(run, progress).work(iter(lambda: ray.get(self._queue.next.remote()), None))
