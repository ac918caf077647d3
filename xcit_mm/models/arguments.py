"""Arguments of the networks: their names and values are checked before anything is built."""

import inspect
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from numbers import Integral, Real

from mmengine.model import BaseModule

from ..archs import PATCH_SIZES
from .pyramid import STRIDES

__all__ = ["check_choices", "check_names", "check_out_indices", "check_rates", "check_strides"]


def check_names(model: type[BaseModule], names: Iterable[str]) -> None:
    """Refuse what is no argument of a class, with the name that was probably meant.

    Args:
        model: With `fixed_arguments`, those of its base classes that it does not take.
        names: Of the keyword arguments given.

    Raises:
        TypeError: If there is no such argument.
    """
    known = _arguments(model) - set(model.fixed_arguments)
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    meant = {name: get_close_matches(name, known, n=1, cutoff=0.7) for name in unknown}
    listed = ", ".join(name + "".join(f" (did you mean {close}?)" for close in meant[name]) for name in unknown)
    strange = not all(meant.values())
    hint = (
        f"; help({model.__name__}) lists them. Forgot _delete_=True over a base config's backbone?" if strange else ""
    )
    raise TypeError(f"{model.__name__} has no argument {listed}{hint}")


def _arguments(model: type[BaseModule]) -> set[str]:
    """Names of the arguments of a class and of those base classes to which it hands on what it does not know."""
    classes = takewhile(lambda base: base is not BaseModule, model.__mro__)
    parameters = [p for base in classes for p in inspect.signature(base).parameters.values()]
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}


def check_choices(patch_size: int, patch_embed: str) -> None:
    if patch_size not in PATCH_SIZES:
        raise ValueError(f"{patch_size=}: choose one of {', '.join(map(str, PATCH_SIZES))}")
    if patch_embed not in ("conv", "linear"):
        raise ValueError(f"{patch_embed=}: choose 'conv' or 'linear'")


def check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not isinstance(rate, Real) or not 0 <= rate < 1:
            raise ValueError(f"{name}={rate!r}: must be at least 0 and below 1")


def check_strides(strides: Sequence[int]) -> tuple[int, ...]:
    found = tuple(stride for stride in STRIDES if stride in strides) if isinstance(strides, Sequence) else ()
    if not found or found != tuple(strides):
        raise ValueError(f"{strides=}: must be increasing, out of {', '.join(map(str, STRIDES))}")
    return found


def check_out_indices(out_indices: Sequence[int], depth: int) -> tuple[int, ...]:
    indices = tuple(out_indices) if isinstance(out_indices, Sequence) else ()
    numbers = all(isinstance(index, Integral) for index in indices)
    if (
        not indices
        or not numbers
        or any(a >= b for a, b in pairwise(indices))
        or indices[0] < 0
        or indices[-1] >= depth
    ):
        raise ValueError(f"{out_indices=}: must be increasing numbers of blocks, 0 to {depth - 1}")
    return indices
