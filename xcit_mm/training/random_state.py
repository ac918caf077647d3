"""The state of the random generators that training uses, as plain values that a checkpoint can hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]


def get_random_state() -> RandomState:
    """Return the states of the generators of Python, numpy, torch and this process's GPU."""
    legacy: Any = np.random.get_state()
    name, keys, *rest = legacy
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return dict(python=random.getstate(), numpy=(name, keys.tolist(), *rest), torch=torch.get_rng_state(), cuda=cuda)


def set_random_state(state: RandomState) -> None:
    """Restore states that `get_random_state` returned."""
    version, keys, *rest = state["python"]
    random.setstate((version, tuple(keys), *rest))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed Python's, numpy's and torch's CPU generators by non-negative numbers within the block, then restore them."""
    state, words = get_random_state(), np.random.SeedSequence(numbers).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    torch.default_generator.manual_seed(int(words.view(np.uint64)[0]))  # torch.manual_seed would seed GPUs as well
    try:
        yield
    finally:
        set_random_state(state)
