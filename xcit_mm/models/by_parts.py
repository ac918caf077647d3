"""Functions of large tensors whose values and gradients are computed part by part."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..utils.compat import autocast_dtype


def by_parts(
    function: Callable[..., Tensor],
    parts: Sequence[tuple[Any, Any]],
    large: Sequence[Tensor],
    small: Sequence[Tensor] = (),
    weights: Sequence[Tensor] = (),
    height: int | None = None,
    values: bool = True,
) -> Tensor:
    """Compute a function of large tensors part by part, so that autograd stores its inputs alone.

    The forward pass computes the parts without gradients. The backward pass computes each part
    again, and adds up the gradients. Both run under the autocast of the caller. The backward pass
    leaves the generators of random numbers as they are.

    Args:
        function: Function of the place of a part, its part of each large tensor, and all of each
            small one.
        parts: The place of each part, and its index in the large tensors.
        large: Tensors of which a part needs a part.
        small: Tensors of which a part needs all, and that may depend on the parameters.
        weights: Parameters, each once. They include all that the function uses.
        height: If given, the results are rows of a tensor (B, height, ...), and a place is a slice
            of these rows. Otherwise, the results are added up.
        values: Whether the sum is needed. If not, the result of the first part is returned, with
            the gradients of the sum.
    """
    tensors = [*large, *small]
    indexed = [(place, [index] * len(large) + [...] * len(small)) for place, index in parts]
    job = _Job(function, indexed, len(parts) if values else 1, height)
    return _ByParts.apply(job, *tensors, *weights)


class _Job(NamedTuple):
    """What `by_parts` computes, apart from tensors.

    Attributes:
        function, height: As in `by_parts`.
        parts: The place of each part, and the index of its part of each tensor.
        computed: How many parts the forward pass computes, from the first on.
    """

    function: Callable[..., Tensor]
    parts: list[tuple[Any, list[Any]]]
    computed: int
    height: int | None


class _ByParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, *inputs: Tensor) -> Tensor:
        count = len(job.parts[0][1])
        tensors = inputs[:count]
        ctx.save_for_backward(*tensors)
        ctx.weights = inputs[count:]
        ctx.job = job
        device = tensors[0].device
        ctx.gpus = [] if device.type == "cpu" else [device]
        dtype = autocast_dtype(device.type)
        # Its cache would give weights that were cast without gradients to the backward pass.
        ctx.autocast = torch.autocast(
            device.type, dtype, enabled=dtype is not None, cache_enabled=False
        )
        out: Any = 0
        with ctx.autocast:
            for place, indices in job.parts[: job.computed]:
                part = job.function(place, *(x[i] for x, i in zip(tensors, indices, strict=True)))
                if job.height is None:
                    out = out + part
                    continue
                if place.start == 0:
                    out = part.new_empty(len(part), job.height, *part.shape[2:])
                out[:, place] = part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        job = ctx.job
        tensors = ctx.saved_tensors
        has_gradient = ctx.needs_input_grad[1 : 1 + len(tensors)]  # the job is the first input
        grads: list[Any] = [
            torch.zeros_like(x) if needed else None
            for x, needed in zip(tensors, has_gradient, strict=True)
        ]
        weight_grads: dict[Tensor, Any] = {}
        with torch.random.fork_rng(ctx.gpus):
            for place, indices in job.parts:
                own = [
                    x[i].detach().requires_grad_(needed)
                    for x, i, needed in zip(tensors, indices, has_gradient, strict=True)
                ]
                with torch.enable_grad(), ctx.autocast:
                    part = job.function(place, *own)
                grad_part = grad_out if job.height is None else grad_out[:, place]
                used = [x for x in (*own, *ctx.weights) if x.requires_grad]
                # Not `backward`, at whose end DDP would count the weights as finished.
                found = torch.autograd.grad(part, used, grad_part, allow_unused=True)
                grad_of = dict(zip(used, found, strict=True))
                for x, i, grad in zip(own, indices, grads, strict=True):
                    if grad_of.get(x) is not None:
                        grad[i] += grad_of[x]
                for weight in ctx.weights:
                    if grad_of.get(weight) is not None:
                        weight_grads[weight] = weight_grads.get(weight, 0) + grad_of[weight]
        return None, *grads, *map(weight_grads.get, ctx.weights)
