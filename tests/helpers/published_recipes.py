"""The published recipes: learning rate at every iteration and weight decay of every parameter."""

import numpy as np
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope
from torch import Tensor, nn

DECAY = dict(mask_rcnn=0.05, semantic_fpn=0.01, upernet=0.01)
LEARNING_RATE = dict(mask_rcnn=1e-4, semantic_fpn=6e-5, upernet=6e-5)
# Iterations; more than 1, because warm-up counts iterations and the schedule counts epochs.
PER_EPOCH = 40
LENGTH = dict(mask_rcnn=36 * PER_EPOCH, semantic_fpn=80000, upernet=160000)  # iterations


def published_rates(task: str) -> np.ndarray:
    """Return the learning rate before each iteration."""
    iteration = np.arange(LENGTH[task])
    if task == "mask_rcnn":
        warm_up = 0.001 + 0.999 * np.minimum(iteration / 500, 1)
        decay = 0.1 ** np.digitize(iteration // PER_EPOCH, (27, 33))
    else:
        warm_up = 1e-6 + (1 - 1e-6) * np.minimum(iteration / 1500, 1)
        decay = 1 - iteration / LENGTH[task]
    return LEARNING_RATE[task] * warm_up * decay


def stepped_rates(cfg: Config, wrapper: OptimWrapper, iterations: int) -> np.ndarray:
    """Step a config's schedulers and return the learning rates, (iterations, groups)."""
    init_default_scope(cfg.default_scope)
    schedulers = [
        PARAM_SCHEDULERS.build(s, default_args=dict(optimizer=wrapper)) for s in cfg.param_scheduler
    ]
    groups = wrapper.optimizer.param_groups
    rates = np.empty((iterations, len(groups)))
    for iteration in range(iterations):
        rates[iteration] = [group["lr"] for group in groups]
        for scheduler in schedulers:
            if not scheduler.by_epoch or (iteration + 1) % PER_EPOCH == 0:
                scheduler.step()
    return rates


def decays(task: str, model: nn.Module) -> dict[str, tuple[Tensor, float]]:
    """Return each parameter and its weight decay, which is 0 in LayerNorm only."""
    return {
        f"{prefix}.{name}": (parameter, 0.0 if isinstance(module, nn.LayerNorm) else DECAY[task])
        for prefix, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    }
