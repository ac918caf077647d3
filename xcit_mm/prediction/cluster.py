"""Processes that share a folder of predictions: the ranks of torchrun, and actors of Ray Data."""

import json
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .engine import Engine
from .items import Item
from .journal import Journal, read_journals
from .predictor import Predictor
from .results import Results

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

    Ray restarts an actor that died, and repeats its chunk. Items of the chunk that this run has
    recorded are then skipped: those with a record in a journal other than `earlier_journals`.
    """

    def __init__(
        self,
        model: dict[str, Any],
        options: dict[str, Any],
        workers: int,
        earlier_journals: set[Path],
    ) -> None:
        progress = read_journals(options["out"])
        entries = progress.entries.values()
        self._done = {entry.item.path for entry in entries if entry.journal not in earlier_journals}
        self._deaths = progress.deaths
        predictor = Predictor.from_config(**model)
        results = Results(predictor=predictor, journal=Journal(options["out"]), **options)
        self._engine = Engine(results, workers)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predict the items of a chunk that are not done, and return the paths of all."""
        chunk = [Item(*fields) for fields in json.loads(batch["chunk"][0])]
        items = [item for item in chunk if item.path not in self._done]
        list(self._engine.predict(items, self._deaths))
        return dict(path=np.array([item.path for item in chunk]))


def predict_on_ray(
    address: str, results: Results, workers: int, items: Sequence[Item]
) -> Iterator[str]:
    """Let the actors of a Ray cluster predict items, and yield the path of each that is done.

    There is an actor for each GPU, or without GPUs for each CPU and its reading processes.

    Args:
        results: Its options are those of the actors' results.
        workers: Number of processes that read images beside each actor.

    Raises:
        ConnectionError: If there is no cluster at the address.
        ValueError: If the predictor was not built from a config and a checkpoint.
        RuntimeError: If an actor raises an error, for example because the disk is full.
    """
    if not items:
        return
    model = results.predictor.arguments
    if model is None:
        raise ValueError("Ray's actors build the model themselves: use Predictor.from_config")
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    options = dict(out=results.out, category_ids=results.category_ids, drawing=results.drawing)
    # Items in other journals were predicted by this run: an actor that Ray restarts skips them.
    earlier_journals = set(results.journal.path.parent.glob("*.jsonl"))
    starts = range(0, len(items), CHUNK)
    chunks = [dict(chunk=json.dumps(items[start : start + CHUNK])) for start in starts]
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        needs = dict(num_gpus=1)
        actors = int(ray.cluster_resources().get("GPU", 0))
        if not actors:
            needs = dict(num_cpus=1 + workers)
            actors = int(ray.cluster_resources().get("CPU", 0)) // (1 + workers)
        data: Any = ray.data.from_items(chunks, override_num_blocks=len(chunks))
        data = data.map_batches(
            Actor,
            fn_constructor_args=(model, options, workers, earlier_journals),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(actors, len(chunks)))),
            **needs,
        )
        for batch in data.iter_batches(batch_size=None):
            yield from batch["path"]
    except ray.exceptions.RayError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    finally:
        ray.shutdown()
