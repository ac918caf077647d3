"""Tasks of a Ray cluster that predict many images."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from ..utils.errors import ArgumentError
from .engine import Engine, Run
from .listing import Item
from .predictor import Predictor

CHUNK = 32  # items of a task of Ray at least, which builds the model for them


def predict_chunk(
    model: dict[str, Any], run: Run, items: Sequence[Item], deaths: Mapping[str, int]
) -> list[Item]:
    """Predict items in a process of Ray, and return them. If it dies, Ray repeats the call."""
    engine = Engine(Predictor.from_pretrained(**model), run)
    return list(engine.predict(items, deaths))


def device_beside_ray(device: str | None) -> str:
    """Return the device of this process, the CPU, since the tasks use the GPUs.

    Raises:
        ArgumentError: If the user has chosen a device.
    """
    if device is not None:
        raise ArgumentError("device", "a task of Ray takes a GPU if there is one: leave it out")
    return "cpu"


def predict_on_ray(
    address: str,
    predictor: Predictor,
    run: Run,
    items: Sequence[Item],
    deaths: Mapping[str, int],
) -> Iterator[Item]:
    """Let a Ray cluster predict items, and yield each that is done.

    A task predicts a chunk with a journal of its own, on a GPU if the cluster has GPUs.
    """
    if not items:
        return
    if predictor.arguments is None:
        fix = "give a name, or a Predictor.from_pretrained"
        raise ArgumentError("model", f"the tasks of Ray build it themselves: {fix}")
    ray: Any = import_module("ray")
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        if "GPU" in ray.cluster_resources():
            needs = dict(num_gpus=1)
        else:
            needs = dict(num_cpus=1 + run.workers)
            most = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
            if run.workers >= most:  # Ray would wait for such a node for ever
                problem = f"{run.workers} for each task, and no node has more than {most:.0f} CPUs"
                raise ArgumentError("workers", f"{problem}: give less than that")
        predict = ray.remote(**needs)(predict_chunk)
        size = max(CHUNK, len(items) // 256)
        chunks = (items[start : start + size] for start in range(0, len(items), size))
        tasks = [predict.remote(predictor.arguments, run, chunk, deaths) for chunk in chunks]
        for task in tasks:
            yield from ray.get(task)
    finally:
        ray.shutdown()
