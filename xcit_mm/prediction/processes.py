"""Processes that share a run: the ranks of torchrun, and actors of Ray Data."""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from .listing import Item
from .predictor import Predictor
from .records import PARTS, iter_records, read_deaths
from .worker import Worker

CHUNK = 32  # items that an actor predicts for a part file


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process and of all processes that torchrun started; 0 and 1 without
    torchrun.
    """
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def rank_device() -> str | None:
    """Return the GPU of this rank of torchrun, or None without torchrun or GPUs."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if local is not None and torch.cuda.is_available() else None


def wait_for_ranks() -> None:
    """Wait until all ranks call this function. A rank may work for days."""
    if rank_and_size()[1] > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=100))
        torch.distributed.barrier()


class Actor:
    """Worker in a Ray cluster, with a model of its own."""

    def __init__(self, arguments: dict[str, Any], out: Any, *worker: Any) -> None:
        self._worker = Worker(out, Predictor(**arguments), *worker)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predict a chunk of items, which another actor may have begun before it died."""
        name, chunk, deaths = json.loads(batch["chunk"][0])
        out, items = self._worker.out, [Item(*item) for item in chunk]
        deaths |= read_deaths((out / PARTS).glob(f"{name}.in-flight"))
        known = {record["path"] for record in iter_records(out, f"{name}-*")}
        self._worker.predict(
            [item for item in items if item.path not in known], name, deaths, lambda count: None
        )
        return dict(items=np.array([len(items)]))


def predict_on_ray(
    address: str,
    worker: Worker,
    items: list[Item],
    deaths: dict[str, int],
    done: Callable[[int], object],
) -> None:
    """Let the actors of a Ray cluster predict items: one per GPU, or without GPUs per CPU and its
    reading processes.

    Ray starts an actor again that died, and repeats its chunk of items.

    Raises:
        ConnectionError: If there is no cluster at the address.
        RuntimeError: If an actor raises an error, for example because the disk is full.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--ray needs Ray: pip install xcit_mm[ray]") from None
    rows = []
    for start in range(0, len(items), CHUNK):
        chunk, name = items[start : start + CHUNK], f"part-{time.time_ns():020}-ray"
        died = {item.path: deaths[item.path] for item in chunk if item.path in deaths}
        rows.append(dict(chunk=json.dumps([name, chunk, died])))
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        gpus, cpus = (int(ray.cluster_resources().get(name, 0)) for name in ("GPU", "CPU"))
        count, needs = (
            (gpus, dict(num_gpus=1))
            if gpus
            else (cpus // (1 + worker.workers), dict(num_cpus=1 + worker.workers))
        )
        pool = ray.data.ActorPoolStrategy(size=max(1, min(count, len(rows))))
        arguments = (
            worker.predictor.arguments,
            worker.out,
            worker.category_ids,
            worker.drawing,
            worker.workers,
        )
        data: Any = ray.data.from_items(rows, override_num_blocks=len(rows))
        data = data.map_batches(
            Actor, fn_constructor_args=arguments, batch_size=1, compute=pool, **needs
        )
        for batch in data.iter_batches(batch_size=None):
            done(int(batch["items"].sum()))
    except ray.exceptions.RayError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    finally:
        ray.shutdown()
