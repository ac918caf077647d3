"""Processes that share a folder of predictions: the ranks of torchrun, and actors of Ray Data."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .engine import Engine
from .journal import Entry, Journal, read_journals
from .listing import Item
from .predictor import Predictor

CHUNK = 32  # items that Ray gives to an actor


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process and of all processes of torchrun, without it 0 and 1."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def rank_device() -> str | None:
    """Return the GPU of this rank of torchrun, or None without torchrun or GPUs."""
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None or not torch.cuda.is_available():
        return None
    return f"cuda:{local_rank}"


def wait_for_ranks() -> None:
    """Wait until all ranks call this function. A rank may work for days."""
    if rank_and_size()[1] > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=100))
        torch.distributed.barrier()


class Actor:
    """An engine in a Ray cluster, with a model and a journal of its own.

    Ray starts an actor again that died, and repeats its chunk. So the new one reads what the
    former has done.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        out: Path,
        category_ids: list[int],
        drawing: dict[str, Any] | None,
        workers: int,
    ) -> None:
        predictor = Predictor.from_config(**arguments)
        self._progress = read_journals(out)
        self._engine = Engine(out, predictor, category_ids, drawing, workers, Journal(out))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predict the items of a chunk that have no new record."""
        chunk = json.loads(batch["chunk"][0])
        items = []
        for fields, earlier_time in chunk:
            item = Item(*fields)
            entry = self._progress.entries.get(item.path)
            if entry is None or entry.time == earlier_time:
                items.append(item)
        self._engine.predict(items, self._progress, lambda count: None)
        return dict(items=np.array([len(chunk)]))


def predict_on_ray(
    address: str,
    engine: Engine,
    items: Sequence[Item],
    entries: Mapping[str, Entry],
    done: Callable[[int], object],
) -> None:
    """Let the actors of a Ray cluster predict items.

    There is an actor for each GPU, or without GPUs for each CPU and its reading processes.

    Args:
        engine: Engine with the options of the actors.
        entries: Earlier records of items that are predicted again.

    Raises:
        ConnectionError: If there is no cluster at the address.
        ValueError: If the predictor was not built from a config and a checkpoint.
        RuntimeError: If an actor raises an error, for example because the disk is full.
    """
    arguments = engine.predictor.arguments
    if arguments is None:
        raise ValueError("Ray's actors build the model themselves: use Predictor.from_config")
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    times = {path: entry.time for path, entry in entries.items()}
    chunks = []
    for start in range(0, len(items), CHUNK):
        chunk = [(item, times.get(item.path)) for item in items[start : start + CHUNK]]
        chunks.append(dict(chunk=json.dumps(chunk)))
    options = arguments, engine.out, engine.category_ids, engine.drawing, engine.workers
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        cpus = int(ray.cluster_resources().get("CPU", 0))
        cpus_of_actor = 1 + engine.workers
        needs = dict(num_gpus=1) if gpus else dict(num_cpus=cpus_of_actor)
        count = gpus or cpus // cpus_of_actor
        data: Any = ray.data.from_items(chunks, override_num_blocks=len(chunks))
        data = data.map_batches(
            Actor,
            fn_constructor_args=options,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(count, len(chunks)))),
            **needs,
        )
        for batch in data.iter_batches(batch_size=None):
            done(int(batch["items"].sum()))
    except ray.exceptions.RayError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    finally:
        ray.shutdown()
