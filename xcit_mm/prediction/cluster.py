"""Tasks of a Ray cluster that predict many images."""

from collections.abc import Iterator, Mapping, Sequence
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
    import ray

    if predictor.arguments is None:
        fix = "give its name, or a Predictor.from_pretrained"
        raise ArgumentError("model", f"each task of Ray builds the model itself: {fix}")
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        gpus = 1 if "GPU" in ray.cluster_resources() else 0
        predict = ray.remote(num_gpus=gpus)(predict_chunk)
        size = max(CHUNK, len(items) // 256)
        chunks = (items[start : start + size] for start in range(0, len(items), size))
        tasks = [predict.remote(predictor.arguments, run, chunk, deaths) for chunk in chunks]
        for task in tasks:
            yield from ray.get(task)
    finally:
        ray.shutdown()
