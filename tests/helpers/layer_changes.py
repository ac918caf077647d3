"""Changes of a layer with a weight that fast code must notice, since it would ignore them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize, prune


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _wrap(layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)


CHANGES: dict[str, Callable[[Any], object]] = {
    "hook": lambda layer: layer.register_forward_hook(lambda layer, args, out: 2 * out),
    "pre-hook": lambda layer: layer.register_forward_pre_hook(lambda layer, args: 2 * args[0]),
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    "parametrized": lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    "wrapped": _wrap,
}
