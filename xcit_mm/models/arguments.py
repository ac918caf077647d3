"""Checks of the networks' arguments, names and values, before anything is built."""

import inspect
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from numbers import Integral, Real

from mmengine.model import BaseModule

from ..archs import PATCH_SIZES
from .pyramid import STRIDES


def check_argument_names(model: type[BaseModule], names: Iterable[str]) -> None:
    """Check that keyword arguments are arguments of a class or of the base classes that get its remaining arguments.

    It does not take the `fixed_arguments` of its base classes.

    Raises:
        TypeError: If an argument is unknown, with the name that was probably meant.
    """
    classes = takewhile(lambda base: base is not BaseModule, model.__mro__)
    parameters = [p for base in classes for p in inspect.signature(base).parameters.values()]
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known -= {"self", *model.fixed_arguments}
    meant = {name: get_close_matches(name, known, n=1, cutoff=0.7) for name in names if name not in known}
    if not meant:
        return
    listed = ", ".join(
        name + "".join(f" (did you mean {match}?)" for match in matches) for name, matches in meant.items()
    )
    hint = f"; help({model.__name__}) lists them. Forgot _delete_=True over a base config's backbone?"
    raise TypeError(f"{model.__name__} has no argument {listed}{'' if all(meant.values()) else hint}")


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
    integers = bool(indices) and all(isinstance(index, Integral) for index in indices)
    if not integers or indices[0] < 0 or indices[-1] >= depth or any(a >= b for a, b in pairwise(indices)):
        raise ValueError(f"{out_indices=}: must be increasing numbers of blocks, 0 to {depth - 1}")
    return indices
