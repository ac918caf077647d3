"""The state of the random generators that training uses, as plain values that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch

__all__ = ["RandomState", "get_random_state", "set_random_state"]

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
